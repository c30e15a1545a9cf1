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
  attempts_ = 0;
  pause_ = {};
  if (!unreachable_ && !step_) not_before_ = {};
}

EngineCall EngineCourse::First() const {
  if (traits_.asks && unknown_) return EngineCall::kAsk;
  if (traits_.prepares && !ReadsAlways() && !ReadsAnew()) return EngineCall::kPrepare;
  return traits_.pauses ? EngineCall::kPause : EngineCall::kLoad;
}

bool EngineCourse::Wanted() const {
  if (spoiled_ && !traits_.prepares) return false;  // it has no kAttach that would prove it
  return !target_.empty() && !out_ && !(served_ == target_) && !(given_up_ == target_);
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
      return !condemned_ && (!traits_.prepares || reloading_);
    case EngineCall::kLoad:
      return !traits_.prepares;
    default:
      return false;
  }
}

EngineCourse::Action EngineCourse::Next(Time now) const {
  Action action;
  Time time = not_before_;
  if (step_) {
    const bool back = undoing_ && (step_ == EngineCall::kRollback || step_ == EngineCall::kProve ||
                                   step_ == EngineCall::kName);
    action = {.call = step_, .to = back ? undo_to_ : to_, .hold = Holds(*step_)};
  } else if (asleep_) {
    action.call = EngineCall::kProbe;
    time = probe_at_;
  } else if (unreachable_ && traits_.probes) {
    action.call = EngineCall::kProbe;
  } else if (Wanted()) {
    const EngineCall first = First();
    action = {.call = first, .to = target_, .hold = first != EngineCall::kAsk};
  } else if (closing_) {
    action = {.call = EngineCall::kClear, .to = to_, .hold = false};
  } else if (CheckWanted()) {
    const EngineCall first = traits_.asks && unknown_ ? EngineCall::kAsk : EngineCall::kCheck;
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
  if (call == EngineCall::kProbe || (closing_ && !Wanted())) return;
  if (!step_) {
    checking_ = !Wanted();
    if (checking_) checks_begun_ = checks_asked_;
    drifted_ = condemned_ = false;
    to_ = action.to;
    reloading_ = ReadsAlways() || ReadsAnew();
    closing_ = attach_tried_ = reloaded_ = prepared_ = false;
    loading_ = may_undo_ = undoing_ = false;
    refusal_.clear();
    named_.clear();
    prepare_seconds_ = load_seconds_ = 0;
  }
  confirms_ = confirms_ && step_ && call == EngineCall::kAsk;
  step_ = call;
  call_began_ = now;
  unasked_ = false;
  was_paused_ = paused_;
  if (call == EngineCall::kPause && !std::exchange(paused_, true)) pause_began_ = now;
  if (call == EngineCall::kLoad || call == EngineCall::kReload) {
    undo_to_ = std::exchange(weights_, {});
    loading_ = true;
    may_undo_ = traits_.rolls_back && call == EngineCall::kLoad && !undo_to_.empty();
  }
}

void EngineCourse::AddTime(EngineCall call, Time now) {
  const double seconds = Seconds(now - call_began_);
  switch (call) {
    case EngineCall::kAsk:
    case EngineCall::kPrepare:
    case EngineCall::kAttach:
      prepare_seconds_ += seconds;
      return;
    case EngineCall::kReload:
    case EngineCall::kLoad:
    case EngineCall::kFlush:
    case EngineCall::kSample:
    case EngineCall::kName:
      load_seconds_ += seconds;
      return;
    default:
      return;
  }
}

std::optional<EngineCall> EngineCourse::After(EngineCall call) const {
  switch (call) {
    case EngineCall::kAsk:
      if (checking_) return EngineCall::kCheck;
      return reloading_ ? EngineCall::kPause : EngineCall::kPrepare;
    case EngineCall::kPrepare:
      return reloaded_ ? EngineCall::kLoad : EngineCall::kPause;
    case EngineCall::kAttach:
      // It has compared all that a reload has brought.
      return reloaded_ ? After(EngineCall::kLoad) : EngineCall::kPrepare;
    case EngineCall::kPause:
      return reloading_ ? EngineCall::kReload : EngineCall::kLoad;
    case EngineCall::kReload:
      if (reload_only_) return After(EngineCall::kLoad);
      return traits_.asks ? EngineCall::kAttach : EngineCall::kPrepare;
    case EngineCall::kRollback:
      return traits_.names ? EngineCall::kName : EngineCall::kResume;
    case EngineCall::kLoad:
      if (traits_.flushes) return EngineCall::kFlush;
      [[fallthrough]];
    case EngineCall::kFlush:
      if (traits_.asks && prepared_) return doubtful_ ? EngineCall::kProve : EngineCall::kSample;
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
  if (checking_) return std::nullopt;
  switch (call) {
    case EngineCall::kPrepare:
      if (traits_.asks && !reloaded_ && !std::exchange(attach_tried_, true)) {
        refusal_ = why;
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
  return traits_.reload_spoils && !traits_.asks && !was_paused_ && weights_.empty();
}

void EngineCourse::Spoil(Time now) {
  spoiled_ = true;
  totals_.error =
      fmt::format("it was found paused, by a receiver that has ended or by somebody{}", kUnproven);
  ++totals_.failures;
  EndAttempt(false, now);
}

std::optional<EngineCall> EngineCourse::Reload(const std::string& why) {
  if (!MayReload()) return std::nullopt;
  // It holds another version, or cannot be followed. The first refusal may be a passing failure,
  // unless there is no other attempt that could show it.
  if (refusals_++ == 0 && attempts_ < policy_.retries) return std::nullopt;
  if (reloaded_) {
    // An engine that surely read the directory serves it, also if it cannot be followed.
    spoiled_ = spoiled_ || doubted_;
    if (spoiled_) return std::nullopt;
    reload_only_ = true;
    why_reload_ = fmt::format("cannot be updated in place, so it reads the directory: {}", why);
    return After(EngineCall::kLoad);
  }
  reloading_ = true;
  return EngineCall::kPause;
}

void EngineCourse::Learn(EngineCall call, const EngineAnswer& answer) {
  const bool attached = call == EngineCall::kAttach;
  const bool compared = attached || call == EngineCall::kProve || call == EngineCall::kCheck;
  if (compared) {
    verified_ = true;
    doubtful_ = false;
  }
  if (compared || call == EngineCall::kSample) unproven_ = false;
  if (call == EngineCall::kLoad) unproven_ = true;
  if (attached) spoiled_ = doubted_ = dropped_ = false;
  if (attached || call == EngineCall::kPrepare) only_anew_ = false;
  if (call == EngineCall::kPrepare) prepared_ = true;
  if (call == EngineCall::kReload) reloaded_ = true;
  if (call == EngineCall::kAsk) {
    unknown_ = false;
    if (!answer.held.empty() && !(answer.held == served_)) served_ = {};
  }
  // By itself it knows what it is, also where a receiver has died in the middle of a load.
  const bool tells = attached || call == EngineCall::kAsk || call == EngineCall::kPrepare;
  const bool believed = !doubtful_ && !unproven_ && !dropped_;
  if (tells && !answer.held.empty() && believed) weights_ = answer.held;
}

void EngineCourse::Doubt(EngineCall call, const EngineAnswer& answer) {
  if (call != EngineCall::kLoad && call != EngineCall::kReload) return;
  if (answer.corrupts) {
    corrupts_ = true;
    weights_ = undo_to_;
    return;
  }
  verified_ = false;
  doubtful_ = true;
  if (!traits_.reload_spoils || !Reads(call)) return;
  const bool provable = traits_.asks && !reload_only_;
  if (answer.result == Result::kRefused || !provable) {
    spoiled_ = true;
  } else {
    doubted_ = true;
  }
}

bool EngineCourse::IsTheSame(const EngineAnswer& answer, Time now) {
  if (answer.out_of_step) {
    totals_.error = answer.why;
    TakeOut(now);
    return false;
  }
  if (answer.process.empty() || answer.process == process_) return true;
  if (std::ranges::find(processes_, answer.process) != processes_.end()) {
    totals_.error = kSeveral;
    TakeOut(now);
    return false;
  }
  const bool first = process_.empty();
  if (!first) processes_.push_back(process_);
  if (processes_.size() > kMostProcesses) processes_.erase(processes_.begin());
  process_ = answer.process;
  denials_ = 0;
  if (first) return true;
  if (std::exchange(checking_, false) && step_) EndCheck("it has started anew");
  step_.reset();
  BeginAnew(/*same=*/false);
  not_before_ = now;
  return false;
}

void EngineCourse::TakeOut(Time now) {
  ++totals_.failures;
  if (std::exchange(checking_, false) && step_) EndCheck(totals_.error);
  step_.reset();
  served_ = weights_ = {};
  given_up_ = target_;
  out_ = unknown_ = true;
  closing_ = verified_ = false;
  not_before_ = {};
  probe_at_ = now + policy_.probe_every;
}

void EngineCourse::Done(EngineCall call, const EngineAnswer& answer, Time now) {
  if (call == EngineCall::kProbe) return Probed(answer, now);
  if (answer.result == Result::kUnreachable) {
    // It was not told to pause. One that is found paused later was paused by another.
    if (call == EngineCall::kPause) paused_ = was_paused_;
    totals_.error = answer.why;
    return Lost(answer.gone, now);
  }
  if (std::exchange(unreachable_, false)) pause_ = {};
  const bool repeated = std::exchange(repeating_, false);
  if (!IsTheSame(answer, now)) return;
  if (answer.result == Result::kAsleep) {
    // A pause that was not asked for has paused nothing.
    if (call == EngineCall::kPause && !condemned_) paused_ = was_paused_;
    return Asleep(answer, now);
  }
  if (answer.unasked && !checking_) return Unasked(call, answer, now);
  if (closing_) {
    // What may still be open takes memory in the engine, as much as the chunks that came whole.
    closing_ = answer.result == Result::kUnsure;
    if (closing_) not_before_ = now + NextPause(policy_.longest_pause);
    return;
  }
  if (resuming_) {
    // Where it was not done, the next probe shows it.
    step_.reset();
    resuming_ = false;
    return;
  }
  AddTime(call, now);
  if (call == EngineCall::kPause && answer.paused && LeftByAnother()) return Spoil(now);
  std::optional<EngineCall> next;
  if (answer.done()) {
    Learn(call, answer);
    if (call == EngineCall::kPause) pause_lost_ = false;
    if (call == EngineCall::kResume) return Resumed(repeated, now);
    if (confirms_ && call == EngineCall::kAsk) return Confirmed(answer, now);
    if (condemned_) return Condemn(now);
    next = After(call);
    if (next == EngineCall::kPrepare && call == EngineCall::kAsk && answer.held.empty()) {
      attach_tried_ = true;
      next = EngineCall::kAttach;
    }
    if (!next && checking_) {
      step_.reset();
      return EndCheck("");
    }
    if (!next) return Serves(now);
  } else {
    const bool refused = answer.result == Result::kRefused;
    // On the way back it proves only that it is not at the version before.
    if (refused && answer.drifted && !undoing_ && !std::exchange(drifted_, true)) {
      return Drifted(call, answer.why, now);
    }
    Doubt(call, answer);
    // It has said what it holds, and its bytes may be other ones.
    if (refused && call == EngineCall::kAttach && !(weights_ == served_)) weights_ = {};
    if (call == EngineCall::kAttach || call == EngineCall::kPrepare || answer.only_anew) {
      only_anew_ = answer.only_anew;
    }
    if (refused) next = Instead(call, answer.why);
    if (!next) {
      const bool of_both =
          call == EngineCall::kPrepare || (call == EngineCall::kAttach && !answer.only_anew);
      const bool both = of_both && !refusal_.empty() && refusal_ != answer.why;
      const std::string_view spoiled = refused ? kSpoiled : kUnproven;
      totals_.error =
          fmt::format("{}{}: {}{}{}", undoing_ ? why_undone_ + "; " : "", ToString(call),
                      answer.why, both ? fmt::format(" (at first: {})", refusal_) : "",
                      spoiled_ && !answer.only_anew ? spoiled : "");
      return Failed(call, answer, now);
    }
  }
  if (next == EngineCall::kResume) weights_ = undoing_ ? undo_to_ : to_;
  step_ = next;
}

uint64_t EngineCourse::AskCheck() {
  ++checks_asked_;
  RefuseCheck();
  return checks_asked_;
}

void EngineCourse::RefuseCheck() {
  if (!ReadsAlways() || checking_ || checks_asked_ == totals_.checks_ended) return;
  checks_begun_ = checks_asked_;
  EndCheck(why_reload_);
}

bool EngineCourse::CheckWanted() const {
  return traits_.checks && checks_asked_ > totals_.checks_ended && !target_.empty() &&
         served_ == target_ && !ReadsAlways();
}

void EngineCourse::EndCheck(std::string error, bool drifted) {
  totals_.checks_ended = checks_begun_;
  totals_.check_error = std::move(error);
  totals_.check_drifted = drifted;
}

void EngineCourse::Drifted(EngineCall call, const std::string& why, Time now) {
  ++totals_.drifts;
  totals_.error = fmt::format("{}: {}", ToString(call), why);
  if (checking_) EndCheck(why, true);
  // The engine's memory is none of the versions now, so it serves none, and no rollback may lead
  // back to this state.
  served_ = weights_ = {};
  verified_ = false;
  doubtful_ = true;
  if (policy_.failure == EngineFailure::kStayPaused || policy_.failure == EngineFailure::kTakeOut) {
    checking_ = false;
    condemned_ = true;
    step_ = EngineCall::kPause;
    return;
  }
  // The next prepare makes the update ready that heals it.
  if (checking_) {
    step_.reset();
    checking_ = false;
    not_before_ = now;
  } else {
    step_ = EngineCall::kPrepare;
  }
}

void EngineCourse::Condemn(Time now) {
  step_.reset();
  given_up_ = to_;
  closing_ = traits_.asks && unknown_;
  out_ = policy_.failure == EngineFailure::kTakeOut;
  not_before_ = {};
  probe_at_ = now + policy_.probe_every;
}

void EngineCourse::Failed(EngineCall call, const EngineAnswer& answer, Time now) {
  ++totals_.failures;
  unknown_ = true;
  if (checking_) {
    step_.reset();
    // The engine goes on with what it serves. It is probed at once, since the call may have failed
    // because another process has taken its place.
    probe_at_ = now;
    return EndCheck(std::exchange(totals_.error, {}));
  }
  const bool unsure = answer.result == Result::kUnsure;
  // A hook that said no has changed nothing; an engine whose load failed may be at no version, and
  // one that has read the directory is at another one.
  const bool unknown = traits_.pauses ? !(weights_ == served_) : unsure;
  if (unknown) served_ = {};
  // An answer that was lost is no refusal: whatever the policy, the update is tried again.
  const bool repeats = policy_.failure == EngineFailure::kRetry || unsure;
  switch (call) {
    case EngineCall::kAsk:
      return EndAttempt(true, now);
    case EngineCall::kPrepare:
    case EngineCall::kAttach:
      // Nothing was changed, unless it comes after a reload.
      return EndAttempt(!reloaded_ || repeats, now);
    case EngineCall::kPause:
      pause_lost_ = unsure;
      // An attempt from the beginning would heal what nobody wants healed.
      if (condemned_) return attempts_ < policy_.retries ? RepeatStep(now) : Condemn(now);
      // One that was found paused may be so because of what it holds.
      if (weights_.empty() || (answer.paused && !(weights_ == served_))) {
        return EndAttempt(true, now);
      }
      // Nothing was loaded, so the engine may go on; and a pause that failed may have been one.
      undo_to_ = weights_;
      return Undo(EngineCall::kResume, /*repeats=*/true);
    case EngineCall::kReload:
      if (!answer.corrupts || doubtful_) break;
      undo_to_ = weights_;  // nothing was touched
      return Undo(EngineCall::kResume, /*repeats=*/false);
    case EngineCall::kResume:
      served_ = {};
      return RepeatStep(now);
    case EngineCall::kName:
      if (undoing_) return RepeatStep(now);
      break;
    case EngineCall::kRollback:
      // A plug-in that is told twice says what it holds then.
      if (traits_.asks && unsure) return RepeatStep(now);
      return EndAttempt(unsure, now);
    case EngineCall::kSample:
    case EngineCall::kProve:
      if (unsure) return RepeatStep(now);
      if (undoing_) return EndAttempt(false, now);
      verified_ = false;
      doubtful_ = true;
      break;
    default:
      break;
  }
  if (policy_.failure == EngineFailure::kRollback && may_undo_) {
    return Undo(EngineCall::kRollback, /*repeats=*/false);
  }
  EndAttempt(repeats, now);
}

void EngineCourse::Undo(EngineCall call, bool repeats) {
  undoing_ = true;
  repeats_ = repeats;
  why_undone_ = totals_.error;
  step_ = call;
}

void EngineCourse::RepeatStep(Time now) {
  if (attempts_ >= policy_.retries) return EndAttempt(false, now);
  ++attempts_;
  ++totals_.retries;
  repeating_ = true;
  not_before_ = now + NextPause(policy_.longest_pause);
}

void EngineCourse::EndAttempt(bool may_repeat, Time now) {
  step_.reset();
  ++attempts_;
  if (may_repeat && attempts_ <= policy_.retries && (!spoiled_ || traits_.prepares)) {
    ++totals_.retries;
    not_before_ = now + NextPause(policy_.longest_pause);
    return;
  }
  given_up_ = to_;
  const bool rollback = policy_.failure == EngineFailure::kRollback && loading_;
  if (rollback && paused_ && weights_.empty() && !spoiled_) totals_.error += kLeftPaused;
  // An update that is left open takes memory in the engine.
  closing_ = traits_.asks && unknown_;
  out_ = policy_.failure == EngineFailure::kTakeOut && loading_;
  not_before_ = {};
  probe_at_ = now + policy_.probe_every;
}

void EngineCourse::Resumed(bool repeated, Time now) {
  paused_ = false;
  totals_.last_pause_seconds = Seconds(now - pause_began_);
  totals_.pause_seconds += totals_.last_pause_seconds;
  const bool failed = repeated || (undoing_ && repeats_);
  if (!failed || !traits_.asks) return Goes(now);
  // While an answer was awaited, another process may have taken the place of the one before.
  confirms_ = true;
  step_ = EngineCall::kAsk;
}

void EngineCourse::Confirmed(const EngineAnswer& answer, Time now) {
  confirms_ = false;
  unknown_ = true;  // an attempt that follows begins as after any failure
  if (answer.held.empty() || answer.held == (undoing_ ? undo_to_ : to_)) return Goes(now);
  totals_.error = "it was resumed, and no longer holds what it was paused with";
  ++totals_.failures;
  served_ = weights_ = {};
  EndAttempt(true, now);
}

void EngineCourse::Goes(Time now) {
  if (!undoing_) return Serves(now);
  served_ = weights_;
  EndAttempt(repeats_, now);
}

void EngineCourse::Serves(Time now) {
  probe_error_.clear();
  totals_.error.clear();
  ++totals_.updates;
  totals_.last_prepare_seconds = prepare_seconds_;
  totals_.last_load_seconds = load_seconds_;
  served_ = weights_ = to_;
  given_up_ = {};
  step_.reset();
  attempts_ = refusals_ = 0;
  pause_ = {};
  not_before_ = {};
  unknown_ = unreachable_ = dropped_ = false;
  probe_at_ = now + policy_.probe_every;
  if (!traits_.checks) doubtful_ = false;
  // What has come from an earlier receiver, or out of a sleep, is compared beside its requests.
  if (!verified_ && traits_.checks) ++checks_asked_;
  RefuseCheck();
}

void EngineCourse::HoldRefused(Time now) {
  unknown_ = unknown_ || step_;
  step_.reset();  // a check that was begun begins anew
  not_before_ = now + kHoldPause;
}

EngineCourse::Nanos EngineCourse::NextPause(std::chrono::milliseconds longest) {
  pause_ = std::min(pause_.count() == 0 ? policy_.first_pause : 2 * pause_, longest);
  const Nanos whole = pause_;
  return whole - Nanos(random_() % (whole.count() / 2 + 1));
}

EngineCourse::View EngineCourse::view() const {
  View view = totals_;
  view.served = served_;
  if (!probe_error_.empty()) view.error = probe_error_;
  if (view.error.empty()) view.error = why_reload_;
  if (asleep_ && probe_error_.empty()) view.error = why_asleep_;
  view.verified = verified_ && !served_.empty();
  view.paused = paused_;
  view.attempts = attempts_;
  const bool waits = !step_ || repeating_;
  if (out_) {
    view.state = EngineState::kOut;
  } else if (asleep_) {
    view.state = EngineState::kAsleep;
  } else if (spoiled_ && !step_ && !unreachable_ && !traits_.prepares) {
    view.state = EngineState::kPaused;
  } else if (unreachable_) {
    view.state = EngineState::kUnreachable;
  } else if (target_.empty()) {
    view.state = EngineState::kWaiting;
  } else if (unasked_ && step_) {
    view.state = EngineState::kRetrying;
  } else if (attempts_ > 0 && waits && !(given_up_ == target_)) {
    view.state = EngineState::kRetrying;
  } else if (step_ && (paused_ || !traits_.prepares)) {
    view.state = EngineState::kUpdating;
  } else if (served_ == target_) {
    view.state = EngineState::kServing;
  } else if (given_up_ == target_) {
    view.state = paused_ ? EngineState::kPaused : EngineState::kBehind;
  } else {
    view.state = EngineState::kPreparing;
  }
  return view;
}

}  // namespace deltawire::receiver
