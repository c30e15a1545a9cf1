#include "receiver/engine/engine_course.h"

#include <algorithm>
#include <utility>

namespace deltawire::receiver {
namespace {

using Result = EngineAnswer::Result;

// The receiver changes the directory; the next commit ends the wait in any case.
constexpr std::chrono::milliseconds kHoldPause{100};
// What vLLM 0.32 keeps of a load that raised goes into the next one, which it then calls done.
constexpr std::string_view kSpoiled =
    "; what it has half loaded, no other reload is sure to repair: start the engine anew";

// The same, where it is not even known that it raised.
constexpr std::string_view kUnproven =
    "; nothing here can show what it has loaded: start the engine anew";
constexpr std::string_view kSeveral =
    "several servers answer at this address; name each of them as an engine of its own";
constexpr size_t kMostProcesses = 16;  // that are remembered
constexpr size_t kChecksKept = 8;      // for callers who have not read their result yet
// An engine that so often names another version than it was told to is no longer believed.
constexpr int kDenials = 3;

// Of an update that was to be taken back.
constexpr std::string_view kLeftPaused =
    "; it is not known to be at the version before, so it stays paused until the next version, or "
    "until it starts anew";

double Seconds(EngineCourse::Nanos time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

EngineCourse::EngineCourse(const EngineTraits& traits, const Policy& policy)
    : traits_(traits), policy_(policy), random_(policy.seed) {}

void EngineCourse::Ready(const Identity& id) {
  if (id.empty() || id == target_) return;
  target_ = id;
  known_.attempts = 0;
  pause_ = {};
  if (!unreachable_ && !attempt_.step) not_before_ = {};
}

EngineCall EngineCourse::First() const {
  if (traits_.asks && known_.unknown) return EngineCall::kAsk;
  if (traits_.prepares && !ReadsAlways() && !ReadsAnew()) return EngineCall::kPrepare;
  return traits_.pauses ? EngineCall::kPause : EngineCall::kLoad;
}

bool EngineCourse::Wanted() const {
  if (process_.spoiled && !traits_.prepares) return false;  // it has no kAttach that would prove it
  return !target_.empty() && !process_.out && !(known_.served == target_) &&
         !(known_.given_up == target_);
}

bool EngineCourse::Reads(EngineCall call) const {
  return call == EngineCall::kReload || (call == EngineCall::kLoad && !traits_.prepares);
}

bool EngineCourse::Holds(EngineCall call) const {
  switch (call) {
    case EngineCall::kPrepare:
    case EngineCall::kAttach:
    case EngineCall::kReload:
    case EngineCall::kCheck:
      return true;
    case EngineCall::kPause:
      // The directory is read right after it, unless the pause stays.
      return !Aims(Aim::kCondemn) && (!traits_.prepares || attempt_.reloading);
    case EngineCall::kLoad:
      return !traits_.prepares;
    default:
      return false;
  }
}

EngineCourse::Action EngineCourse::Next(Time now) const {
  Action action;
  Time time = not_before_;
  if (attempt_.step) {
    const bool back = Aims(Aim::kUndo) &&
                      (attempt_.step == EngineCall::kRollback ||
                       attempt_.step == EngineCall::kProve || attempt_.step == EngineCall::kName);
    action = {.call = attempt_.step,
              .to = back ? attempt_.undo_to : attempt_.to,
              .hold = Holds(*attempt_.step)};
  } else if (known_.asleep) {
    action.call = EngineCall::kProbe;
    time = probe_at_;
  } else if (unreachable_ && traits_.probes) {
    action.call = EngineCall::kProbe;
  } else if (Wanted()) {
    const EngineCall first = First();
    action = {.call = first, .to = target_, .hold = first != EngineCall::kAsk};
  } else if (known_.closing) {
    action = {.call = EngineCall::kClear, .to = attempt_.to, .hold = false};
  } else if (CheckWanted()) {
    const EngineCall first = traits_.asks && known_.unknown ? EngineCall::kAsk : EngineCall::kCheck;
    action = {.call = first, .to = target_, .hold = Holds(first)};
  } else if (traits_.probes && !target_.empty()) {
    action.call = EngineCall::kProbe;
    time = probe_at_;
  } else {
    return action;
  }
  if (time > now) return {.call = {}, .to = {}, .hold = false, .until = time};
  return action;
}

void EngineCourse::Begin(const Action& action, Time now) {
  const EngineCall call = *action.call;
  if (call == EngineCall::kProbe || (known_.closing && !Wanted())) return;
  if (!attempt_.step) {
    const bool checks = !Wanted();
    if (checks) checks_begun_ = checks_asked_;
    attempt_ = {.aim = checks ? Aim::kCheck : Aim::kUpdate,
                .to = action.to,
                .reloading = ReadsAlways() || ReadsAnew()};
    known_.closing = false;
    process_.named.clear();
  }
  attempt_.confirms = attempt_.confirms && call == EngineCall::kAsk;
  attempt_.step = call;
  attempt_.call_began = now;
  attempt_.unasked = false;
  attempt_.was_paused = process_.paused;
  if (call == EngineCall::kPause && !std::exchange(process_.paused, true)) pause_began_ = now;
  if (call == EngineCall::kLoad || call == EngineCall::kReload) {
    attempt_.undo_to = std::exchange(known_.weights, {});
    attempt_.loading = true;
    attempt_.may_undo =
        traits_.rolls_back && call == EngineCall::kLoad && !attempt_.undo_to.empty();
  }
}

void EngineCourse::AddTime(EngineCall call, Time now) {
  const double seconds = Seconds(now - attempt_.call_began);
  switch (call) {
    case EngineCall::kAsk:
    case EngineCall::kPrepare:
    case EngineCall::kAttach:
      attempt_.prepare_seconds += seconds;
      return;
    case EngineCall::kReload:
    case EngineCall::kLoad:
    case EngineCall::kFlush:
    case EngineCall::kSample:
    case EngineCall::kName:
      attempt_.load_seconds += seconds;
      return;
    default:
      return;
  }
}

std::optional<EngineCall> EngineCourse::After(EngineCall call) const {
  switch (call) {
    case EngineCall::kAsk:
      if (Aims(Aim::kCheck)) return EngineCall::kCheck;
      return attempt_.reloading ? EngineCall::kPause : EngineCall::kPrepare;
    case EngineCall::kPrepare:
      return attempt_.reloaded ? EngineCall::kLoad : EngineCall::kPause;
    case EngineCall::kAttach:
      // It has compared all that a reload has brought.
      return attempt_.reloaded ? After(EngineCall::kLoad) : EngineCall::kPrepare;
    case EngineCall::kPause:
      return attempt_.reloading ? EngineCall::kReload : EngineCall::kLoad;
    case EngineCall::kReload:
      if (known_.reload_only) return After(EngineCall::kLoad);
      return traits_.asks ? EngineCall::kAttach : EngineCall::kPrepare;
    case EngineCall::kRollback:
      return traits_.names ? EngineCall::kName : EngineCall::kResume;
    case EngineCall::kLoad:
      if (traits_.flushes) return EngineCall::kFlush;
      [[fallthrough]];
    case EngineCall::kFlush:
      if (traits_.asks && attempt_.prepared) {
        return process_.doubtful ? EngineCall::kProve : EngineCall::kSample;
      }
      [[fallthrough]];
    case EngineCall::kSample:
    case EngineCall::kProve:
      if (traits_.names) return EngineCall::kName;
      [[fallthrough]];
    case EngineCall::kName:
      if (traits_.pauses) return EngineCall::kResume;
      [[fallthrough]];
    case EngineCall::kResume:
    case EngineCall::kCheck:
    case EngineCall::kClear:
    case EngineCall::kProbe:
      return std::nullopt;
  }
  return std::nullopt;
}

std::optional<EngineCall> EngineCourse::Instead(EngineCall call, const std::string& why) {
  if (Aims(Aim::kCheck)) return std::nullopt;
  switch (call) {
    case EngineCall::kPrepare:
      if (traits_.asks && !attempt_.reloaded && !std::exchange(attempt_.attach_tried, true)) {
        attempt_.refusal = why;
        return EngineCall::kAttach;
      }
      if (!traits_.asks) return Reload(why);
      return std::nullopt;
    case EngineCall::kAttach:
      return Reload(why);
    case EngineCall::kRollback:
      if (traits_.proves) return EngineCall::kProve;
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

bool EngineCourse::LeftByAnother() const {
  return traits_.reload_spoils && !traits_.asks && !attempt_.was_paused && known_.weights.empty();
}

void EngineCourse::Spoil(Time now) {
  process_.spoiled = true;
  totals_.error =
      fmt::format("it was found paused, by a receiver that has ended or by somebody{}", kUnproven);
  ++totals_.failures;
  EndAttempt(false, now);
}

std::optional<EngineCall> EngineCourse::Reload(const std::string& why) {
  if (!MayReload()) return std::nullopt;
  // It holds another version, or cannot be followed. The first refusal may be a passing failure,
  // unless there is no other attempt that could show it.
  if (known_.refusals++ == 0 && known_.attempts < policy_.retries) return std::nullopt;
  if (attempt_.reloaded) {
    // An engine that surely read the directory serves it, also if it cannot be followed.
    process_.spoiled = process_.spoiled || process_.doubted;
    if (process_.spoiled) return std::nullopt;
    known_.reload_only = true;
    known_.why_reload =
        fmt::format("cannot be updated in place, so it reads the directory: {}", why);
    return After(EngineCall::kLoad);
  }
  attempt_.reloading = true;
  return EngineCall::kPause;
}

void EngineCourse::Learn(EngineCall call, const EngineAnswer& answer) {
  const bool attached = call == EngineCall::kAttach;
  const bool compared = attached || call == EngineCall::kProve || call == EngineCall::kCheck;
  if (compared) {
    known_.verified = true;
    process_.doubtful = false;
  }
  if (compared || call == EngineCall::kSample) process_.unproven = false;
  if (call == EngineCall::kLoad) process_.unproven = true;
  if (attached) process_.spoiled = process_.doubted = dropped_ = false;
  if (attached || call == EngineCall::kPrepare) known_.only_anew = false;
  if (call == EngineCall::kPrepare) attempt_.prepared = true;
  if (call == EngineCall::kReload) attempt_.reloaded = true;
  if (call == EngineCall::kAsk) {
    known_.unknown = false;
    if (!answer.held.empty() && !(answer.held == known_.served)) known_.served = {};
  }
  // By itself it knows what it is, also where a receiver has died in the middle of a load.
  const bool tells = attached || call == EngineCall::kAsk || call == EngineCall::kPrepare;
  const bool believed = !process_.doubtful && !process_.unproven && !dropped_;
  if (tells && !answer.held.empty() && believed) known_.weights = answer.held;
}

void EngineCourse::Doubt(EngineCall call, const EngineAnswer& answer) {
  if (call != EngineCall::kLoad && call != EngineCall::kReload) return;
  if (answer.corrupts) {
    process_.corrupts = true;
    known_.weights = attempt_.undo_to;
    return;
  }
  known_.verified = false;
  process_.doubtful = true;
  if (!traits_.reload_spoils || !Reads(call)) return;
  const bool provable = traits_.asks && !known_.reload_only;
  if (answer.result == Result::kRefused || !provable) {
    process_.spoiled = true;
  } else {
    process_.doubted = true;
  }
}

bool EngineCourse::IsTheSame(const EngineAnswer& answer, Time now) {
  if (answer.out_of_step) {
    totals_.error = answer.why;
    TakeOut(now);
    return false;
  }
  if (answer.process.empty() || answer.process == process_name_) return true;
  if (std::ranges::find(processes_, answer.process) != processes_.end()) {
    totals_.error = kSeveral;
    TakeOut(now);
    return false;
  }
  const bool first = process_name_.empty();
  if (!first) processes_.push_back(process_name_);
  if (processes_.size() > kMostProcesses) processes_.erase(processes_.begin());
  process_name_ = answer.process;
  denials_ = 0;
  if (first) return true;
  if (Aims(Aim::kCheck)) EndCheck("it has started anew");
  attempt_.step.reset();
  BeginAnew(/*same=*/false);
  not_before_ = now;
  return false;
}

void EngineCourse::TakeOut(Time now) {
  ++totals_.failures;
  if (Aims(Aim::kCheck)) EndCheck(totals_.error);
  attempt_.step.reset();
  known_.served = known_.weights = {};
  known_.given_up = target_;
  process_.out = known_.unknown = true;
  known_.closing = known_.verified = false;
  not_before_ = {};
  probe_at_ = now + policy_.probe_every;
}

void EngineCourse::Done(EngineCall call, const EngineAnswer& answer, Time now) {
  if (call == EngineCall::kProbe) return Probed(answer, now);
  if (answer.result == Result::kUnreachable) {
    // It was not told to pause. One that is found paused later was paused by another.
    if (call == EngineCall::kPause) process_.paused = attempt_.was_paused;
    totals_.error = answer.why;
    return Lost(answer.gone, now);
  }
  if (std::exchange(unreachable_, false)) pause_ = {};
  const bool repeated = std::exchange(attempt_.repeating, false);
  if (!IsTheSame(answer, now)) return;
  if (answer.result == Result::kAsleep) {
    // A pause that was not asked for has paused nothing.
    if (call == EngineCall::kPause && !Aims(Aim::kCondemn)) process_.paused = attempt_.was_paused;
    return Asleep(answer, now);
  }
  if (answer.unasked && !Aims(Aim::kCheck)) return Unasked(call, answer, now);
  if (known_.closing) {
    // What may still be open takes memory in the engine, as much as the chunks that came whole.
    known_.closing = answer.result == Result::kUnsure;
    if (known_.closing) not_before_ = now + NextPause(policy_.longest_pause);
    return;
  }
  if (Aims(Aim::kResume)) return attempt_.step.reset();
  if (Aims(Aim::kResume)) return attempt_.step.reset();
  AddTime(call, now);
  if (call == EngineCall::kPause && answer.paused && LeftByAnother()) return Spoil(now);
  std::optional<EngineCall> next;
  if (answer.done()) {
    Learn(call, answer);
    if (call == EngineCall::kPause) process_.pause_lost = false;
    if (call == EngineCall::kResume) return Resumed(repeated, now);
    if (attempt_.confirms && call == EngineCall::kAsk) return Confirmed(answer, now);
    if (Aims(Aim::kCondemn)) return Condemn(now);
    next = After(call);
    if (next == EngineCall::kPrepare && call == EngineCall::kAsk && answer.held.empty()) {
      attempt_.attach_tried = true;
      next = EngineCall::kAttach;
    }
    if (!next && Aims(Aim::kCheck)) {
      attempt_.step.reset();
      return EndCheck("");
    }
    if (!next) return Serves(now);
  } else {
    const bool refused = answer.result == Result::kRefused;
    // On the way back it proves only that it is not at the version before.
    if (refused && answer.drifted && !Aims(Aim::kUndo) && !std::exchange(attempt_.drifted, true)) {
      return Drifted(call, answer.why, now);
    }
    Doubt(call, answer);
    // It has said what it holds, and its bytes may be other ones.
    if (refused && call == EngineCall::kAttach && !(known_.weights == known_.served))
      known_.weights = {};
    if (call == EngineCall::kAttach || call == EngineCall::kPrepare || answer.only_anew) {
      known_.only_anew = answer.only_anew;
    }
    if (refused) next = Instead(call, answer.why);
    if (!next) {
      const bool of_both =
          call == EngineCall::kPrepare || (call == EngineCall::kAttach && !answer.only_anew);
      const bool both = of_both && !attempt_.refusal.empty() && attempt_.refusal != answer.why;
      const std::string_view spoiled = refused ? kSpoiled : kUnproven;
      totals_.error = fmt::format(
          "{}{}: {}{}{}", Aims(Aim::kUndo) ? attempt_.why_undone + "; " : "", ToString(call),
          answer.why, both ? fmt::format(" (at first: {})", attempt_.refusal) : "",
          process_.spoiled && !answer.only_anew ? spoiled : "");
      return Failed(call, answer, now);
    }
  }
  if (next == EngineCall::kResume)
    known_.weights = Aims(Aim::kUndo) ? attempt_.undo_to : attempt_.to;
  attempt_.step = next;
}

uint64_t EngineCourse::AskCheck() {
  ++checks_asked_;
  RefuseCheck();
  return checks_asked_;
}

void EngineCourse::RefuseCheck() {
  if (!ReadsAlways() || Aims(Aim::kCheck) || checks_asked_ == totals_.last_check().number) return;
  checks_begun_ = checks_asked_;
  EndCheck(known_.why_reload);
}

bool EngineCourse::CheckWanted() const {
  return traits_.checks && checks_asked_ > totals_.last_check().number && !target_.empty() &&
         known_.served == target_ && !ReadsAlways();
}

void EngineCourse::EndCheck(std::string error, bool drifted) {
  totals_.checks.push_back({checks_begun_, std::move(error), drifted});
  if (totals_.checks.size() > kChecksKept) totals_.checks.pop_front();
}

void EngineCourse::Drifted(EngineCall call, const std::string& why, Time now) {
  ++totals_.drifts;
  totals_.error = fmt::format("{}: {}", ToString(call), why);
  if (Aims(Aim::kCheck)) EndCheck(why, true);
  // The engine's memory is none of the versions now, so it serves none, and no rollback may lead
  // back to this state.
  known_.served = known_.weights = {};
  known_.verified = false;
  process_.doubtful = true;
  if (policy_.failure == EngineFailure::kStayPaused || policy_.failure == EngineFailure::kTakeOut) {
    attempt_.aim = Aim::kCondemn;
    attempt_.step = EngineCall::kPause;
    return;
  }
  // The next prepare makes the update ready that heals it.
  if (Aims(Aim::kCheck)) {
    attempt_.step.reset();
    not_before_ = now;
  } else {
    attempt_.step = EngineCall::kPrepare;
  }
}

void EngineCourse::Condemn(Time now) {
  attempt_.step.reset();
  known_.given_up = attempt_.to;
  known_.closing = traits_.asks && known_.unknown;
  process_.out = policy_.failure == EngineFailure::kTakeOut;
  not_before_ = {};
  probe_at_ = now + policy_.probe_every;
}

void EngineCourse::Failed(EngineCall call, const EngineAnswer& answer, Time now) {
  ++totals_.failures;
  known_.unknown = true;
  if (Aims(Aim::kCheck)) {
    attempt_.step.reset();
    // The engine goes on with what it serves. It is probed at once, since the call may have failed
    // because another process has taken its place.
    probe_at_ = now;
    return EndCheck(std::exchange(totals_.error, {}));
  }
  const bool unsure = answer.result == Result::kUnsure;
  // A hook that said no has changed nothing; an engine whose load failed may be at no version, and
  // one that has read the directory is at another one.
  const bool unknown = traits_.pauses ? !(known_.weights == known_.served) : unsure;
  if (unknown) known_.served = {};
  // An answer that was lost is no refusal: whatever the policy, the update is tried again.
  const bool repeats = policy_.failure == EngineFailure::kRetry || unsure;
  switch (call) {
    case EngineCall::kAsk:
      return EndAttempt(true, now);
    case EngineCall::kPrepare:
    case EngineCall::kAttach:
      // Nothing was changed, unless it comes after a reload.
      return EndAttempt(!attempt_.reloaded || repeats, now);
    case EngineCall::kPause:
      process_.pause_lost = unsure;
      // An attempt from the beginning would heal what nobody wants healed.
      if (Aims(Aim::kCondemn))
        return known_.attempts < policy_.retries ? RepeatStep(now) : Condemn(now);
      // One that was found paused may be so because of what it holds.
      if (known_.weights.empty() || (answer.paused && !(known_.weights == known_.served))) {
        return EndAttempt(true, now);
      }
      // Nothing was loaded, so the engine may go on; and a pause that failed may have been one.
      attempt_.undo_to = known_.weights;
      return Undo(EngineCall::kResume, /*repeats=*/true);
    case EngineCall::kReload:
      if (!answer.corrupts || process_.doubtful) break;
      attempt_.undo_to = known_.weights;  // nothing was touched
      return Undo(EngineCall::kResume, /*repeats=*/false);
    case EngineCall::kResume:
      known_.served = {};
      return RepeatStep(now);
    case EngineCall::kName:
      if (Aims(Aim::kUndo)) return RepeatStep(now);
      break;
    case EngineCall::kRollback:
      // A plug-in that is told twice says what it holds then.
      if (traits_.asks && unsure) return RepeatStep(now);
      return EndAttempt(unsure, now);
    case EngineCall::kSample:
    case EngineCall::kProve:
      if (unsure) return RepeatStep(now);
      if (Aims(Aim::kUndo)) return EndAttempt(false, now);
      known_.verified = false;
      process_.doubtful = true;
      break;
    default:
      break;
  }
  if (policy_.failure == EngineFailure::kRollback && attempt_.may_undo) {
    return Undo(EngineCall::kRollback, /*repeats=*/false);
  }
  EndAttempt(repeats, now);
}

void EngineCourse::Undo(EngineCall call, bool repeats) {
  attempt_.aim = Aim::kUndo;
  attempt_.repeats = repeats;
  attempt_.why_undone = totals_.error;
  attempt_.step = call;
}

void EngineCourse::RepeatStep(Time now) {
  if (known_.attempts >= policy_.retries) return EndAttempt(false, now);
  ++known_.attempts;
  ++totals_.retries;
  attempt_.repeating = true;
  not_before_ = now + NextPause(policy_.longest_pause);
}

void EngineCourse::EndAttempt(bool may_repeat, Time now) {
  attempt_.step.reset();
  ++known_.attempts;
  if (may_repeat && known_.attempts <= policy_.retries && (!process_.spoiled || traits_.prepares)) {
    ++totals_.retries;
    not_before_ = now + NextPause(policy_.longest_pause);
    return;
  }
  known_.given_up = attempt_.to;
  const bool rollback = policy_.failure == EngineFailure::kRollback && attempt_.loading;
  if (rollback && process_.paused && known_.weights.empty() && !process_.spoiled)
    totals_.error += kLeftPaused;
  // An update that is left open takes memory in the engine.
  known_.closing = traits_.asks && known_.unknown;
  process_.out = policy_.failure == EngineFailure::kTakeOut && attempt_.loading;
  not_before_ = {};
  probe_at_ = now + policy_.probe_every;
}

void EngineCourse::Resumed(bool repeated, Time now) {
  process_.paused = false;
  totals_.last_pause_seconds = Seconds(now - pause_began_);
  totals_.pause_seconds += totals_.last_pause_seconds;
  const bool failed = repeated || (Aims(Aim::kUndo) && attempt_.repeats);
  if (!failed || !traits_.asks) return Goes(now);
  // While an answer was awaited, another process may have taken the place of the one before.
  attempt_.confirms = true;
  attempt_.step = EngineCall::kAsk;
}

void EngineCourse::Confirmed(const EngineAnswer& answer, Time now) {
  attempt_.confirms = false;
  known_.unknown = true;  // an attempt that follows begins as after any failure
  if (answer.held.empty() || answer.held == (Aims(Aim::kUndo) ? attempt_.undo_to : attempt_.to))
    return Goes(now);
  totals_.error = "it was resumed, and no longer holds what it was paused with";
  ++totals_.failures;
  known_.served = known_.weights = {};
  EndAttempt(true, now);
}

void EngineCourse::Goes(Time now) {
  if (!Aims(Aim::kUndo)) return Serves(now);
  known_.served = known_.weights;
  EndAttempt(attempt_.repeats, now);
}

void EngineCourse::Serves(Time now) {
  probe_error_.clear();
  totals_.error.clear();
  ++totals_.updates;
  totals_.last_prepare_seconds = attempt_.prepare_seconds;
  totals_.last_load_seconds = attempt_.load_seconds;
  known_.served = known_.weights = attempt_.to;
  known_.given_up = {};
  attempt_.step.reset();
  known_.attempts = known_.refusals = 0;
  pause_ = {};
  not_before_ = {};
  known_.unknown = unreachable_ = dropped_ = false;
  probe_at_ = now + policy_.probe_every;
  if (!traits_.checks) process_.doubtful = false;
  // What has come from an earlier receiver, or out of a sleep, is compared beside its requests.
  if (!known_.verified && traits_.checks) ++checks_asked_;
  RefuseCheck();
}

void EngineCourse::HoldRefused(Time now) {
  known_.unknown = known_.unknown || attempt_.step;
  attempt_.step.reset();  // a check that was begun begins anew
  not_before_ = now + kHoldPause;
}

EngineCourse::Nanos EngineCourse::NextPause(std::chrono::milliseconds longest) {
  pause_ = std::min(pause_.count() == 0 ? policy_.first_pause : 2 * pause_, longest);
  const Nanos whole = pause_;
  return whole - Nanos(random_() % (whole.count() / 2 + 1));
}

bool EngineCourse::StaysPaused() const {
  const bool given_up = !known_.given_up.empty() && policy_.failure != EngineFailure::kRetry;
  return process_.out || (process_.paused && (process_.spoiled || given_up));
}

void EngineCourse::Asleep(const EngineAnswer& answer, Time now) {
  // The results of checks that have ended stay.
  if (Aims(Aim::kCheck)) EndCheck(answer.why);
  // It was to be paused for good. Sleep holds its requests as well.
  if (Aims(Aim::kCondemn)) Condemn(now);
  known_.held_back = known_.held_back || StaysPaused();
  attempt_.step.reset();
  known_.asleep = true;
  process_.paused = false;  // it resumes by itself when it wakes
  dropped_ = dropped_ || answer.dropped;
  known_.why_asleep = answer.why;
  known_.served = {};
  probe_at_ = now + policy_.probe_every;
}

void EngineCourse::Woke(const std::string& named) {
  // An engine that wakes resumes its requests by itself. What it has kept is what it was, which a
  // check of all of it shows when it serves; what it has dropped is read anew, and then proven.
  const bool known = !process_.named.empty() && !named.empty();
  const bool anew = known && named != process_.named && named != VersionName(attempt_.to);
  const bool stays = known_.held_back && !anew, out = process_.out && !anew;
  const std::string before = process_.named;
  const Identity given_up = known_.given_up;
  BeginAnew(/*same=*/!anew);
  process_.out = false;
  pause_ = {};
  not_before_ = {};
  if (!stays) return;
  // It answers from what it was left paused for: it is paused again, and left so.
  process_.out = out;
  process_.named = before;
  // A newer version may have been begun, and was not tried.
  attempt_ = {.aim = Aim::kCondemn,
              .step = EngineCall::kPause,
              .to = given_up.empty() ? attempt_.to : given_up};
}

void EngineCourse::Unasked(EngineCall call, const EngineAnswer& answer, Time now) {
  totals_.error = fmt::format("{}: {}", ToString(call), answer.why);
  process_.paused = attempt_.was_paused;
  attempt_.unasked = true;
  not_before_ = now + NextPause(policy_.longest_pause);
}

void EngineCourse::Lost(bool gone, Time now) {
  if (!std::exchange(unreachable_, true)) {
    ++totals_.failures;
    pause_ = {};
  }
  // The results of checks that have ended stay.
  if (Aims(Aim::kCheck)) EndCheck(totals_.error);
  // When it can be reached again, it may be another process.
  attempt_.step.reset();
  probe_error_.clear();
  denials_ = 0;
  BeginAnew(/*same=*/!gone);
  not_before_ = now + NextPause(policy_.reach_every);
}

void EngineCourse::BeginAnew(bool same) {
  known_ = {};
  if (!same) process_ = {};
}

void EngineCourse::Probed(const EngineAnswer& answer, Time now) {
  probe_at_ = now + policy_.probe_every;
  if (answer.result == Result::kUnreachable) {
    totals_.error = answer.why;
    return Lost(answer.gone, now);
  }
  if (answer.result == Result::kAsleep) {
    probe_error_.clear();
    unreachable_ = false;
    return Asleep(answer, now);
  }
  if (answer.result == Result::kUnsure) {
    probe_error_ = fmt::format("{}: {}", ToString(EngineCall::kProbe), answer.why);
    if (unreachable_) not_before_ = now + NextPause(policy_.reach_every);
    return;
  }
  if (known_.asleep && !answer.done()) {
    probe_error_ = fmt::format("{}: {}", ToString(EngineCall::kProbe), answer.why);
    return;
  }
  probe_error_.clear();
  if (known_.asleep) return Woke(answer.version);
  if (std::exchange(unreachable_, false)) {
    pause_ = {};
    not_before_ = {};
    return;
  }
  if (process_.pause_lost && answer.paused && !process_.paused) {
    attempt_ = {.aim = Aim::kResume, .step = EngineCall::kResume, .to = attempt_.to};
    not_before_ = now;
  }
  if (answer.version.empty()) return;
  if (known_.served.empty()) {
    // The first probe after the version was given up tells which version it names. An update whose
    // answer was cut may be done later.
    if (process_.named.empty() || answer.version == VersionName(attempt_.to))
      process_.named = answer.version;
    if (answer.version == process_.named) return;
  } else {
    process_.named = VersionName(known_.served);
    if (answer.version == process_.named) {
      denials_ = 0;
      return;
    }
  }
  if (++denials_ >= kDenials) return;
  totals_.error =
      fmt::format("named version \"{}\" instead of \"{}\": it started anew, or somebody changed it",
                  answer.version, process_.named);
  // A plug-in says with its next answer whether it is another process.
  process_.out = false;
  BeginAnew(/*same=*/traits_.asks);
  not_before_ = {};
}

const EngineCourse::Check* EngineCourse::View::CheckAfter(uint64_t number) const {
  const auto check =
      std::ranges::find_if(checks, [number](const Check& c) { return c.number >= number; });
  return check == checks.end() ? nullptr : &*check;
}

EngineCourse::View EngineCourse::view() const {
  View view = totals_;
  view.served = known_.served;
  if (!probe_error_.empty()) view.error = probe_error_;
  if (view.error.empty()) view.error = known_.why_reload;
  if (known_.asleep && probe_error_.empty()) view.error = known_.why_asleep;
  view.verified = known_.verified && !known_.served.empty();
  view.paused = process_.paused;
  view.attempts = known_.attempts;
  const bool waits = !attempt_.step || attempt_.repeating;
  if (process_.out) {
    view.state = EngineState::kOut;
  } else if (known_.asleep) {
    view.state = EngineState::kAsleep;
  } else if (process_.spoiled && !attempt_.step && !unreachable_ && !traits_.prepares) {
    view.state = EngineState::kPaused;
  } else if (unreachable_) {
    view.state = EngineState::kUnreachable;
  } else if (target_.empty()) {
    view.state = EngineState::kWaiting;
  } else if (attempt_.unasked && attempt_.step) {
    view.state = EngineState::kRetrying;
  } else if (known_.attempts > 0 && waits && !(known_.given_up == target_)) {
    view.state = EngineState::kRetrying;
  } else if (attempt_.step && (process_.paused || !traits_.prepares)) {
    view.state = EngineState::kUpdating;
  } else if (known_.served == target_) {
    view.state = EngineState::kServing;
  } else if (known_.given_up == target_) {
    view.state = process_.paused ? EngineState::kPaused : EngineState::kBehind;
  } else {
    view.state = EngineState::kPreparing;
  }
  return view;
}

}  // namespace deltawire::receiver
