#include "receiver/engine/engine_course.h"

#include <algorithm>
#include <utility>

namespace deltawire::receiver {
namespace {

using Result = EngineAnswer::Result;

// The receiver changes the directory; the next commit ends the wait in any case.
constexpr std::chrono::milliseconds kHoldPause{100};
// A load that raised leaves parts in vLLM 0.32, which go into the next one. That one is then said
// to be done.
constexpr std::string_view kSpoiled =
    "; what it has half loaded, no other reload is sure to repair: start the engine anew";

// The same, where it is not even known that it raised.
constexpr std::string_view kUnproven =
    "; nothing here can show what it has loaded: start the engine anew";
constexpr std::string_view kSeveral =
    "several servers answer at this address; name each of them as an engine of its own";
// An engine that so often names another version than it was told to is no longer believed.
constexpr int kDenials = 3;

// For an update that was to be undone.
constexpr std::string_view kLeftPaused =
    "; it is not known to be at the version before, so it stays paused until the next version, or "
    "until it starts anew";

}  // namespace

EngineCourse::EngineCourse(const EngineTraits& traits, const Policy& policy)
    : traits_(traits),
      policy_(policy),
      facts_(traits),
      random_(policy.seed),
      pause_(policy.first_pause, policy.longest_pause) {}

void EngineCourse::Ready(const Identity& id) {
  if (id.empty() || id == target_) return;
  target_ = id;
  facts_.known.attempts = 0;
  pause_.Reset();
  if (!unreachable_ && !attempt_.step) not_before_ = {};
}

EngineCourse::Action EngineCourse::Next(Time now) const {
  const EngineFacts::Known& known = facts_.known;
  Action action;
  Time time = not_before_;
  if (attempt_.step) {
    action = {.call = attempt_.step,
              .to = attempt_.subject(),
              .hold = attempt_.Holds(*attempt_.step, traits_)};
  } else if (known.asleep) {
    action.call = EngineCall::kProbe;
    time = probe_.at;
  } else if (unreachable_ && traits_.probes) {
    action.call = EngineCall::kProbe;
  } else if (facts_.Wants(target_)) {
    const EngineCall first = facts_.FirstCall(/*of_check=*/false);
    action = {.call = first, .to = target_, .hold = first != EngineCall::kAsk};
  } else if (known.closing) {
    action = {.call = EngineCall::kClear, .to = attempt_.to, .hold = false};
  } else if (traits_.checks && checks_.pending() && !target_.empty() && known.served == target_ &&
             !facts_.ReadsAlways()) {
    const EngineCall first = facts_.FirstCall(/*of_check=*/true);
    action = {.call = first, .to = target_, .hold = attempt_.Holds(first, traits_)};
  } else if (traits_.probes && !target_.empty()) {
    action.call = EngineCall::kProbe;
    time = probe_.at;
  } else {
    return action;
  }
  if (time > now) return {.call = {}, .to = {}, .hold = false, .until = time};
  action.looks = traits_.sleeps && attempt_.Looks(*action.call);
  action.asleep = known.asleep;
  return action;
}

void EngineCourse::Begin(const Action& action, Time now) {
  const EngineCall call = *action.call;
  const bool wanted = facts_.Wants(target_);
  if (call == EngineCall::kProbe || (facts_.known.closing && !wanted)) return;
  if (!attempt_.step) {
    if (!wanted) checks_.Begin();
    attempt_ = {.aim = wanted ? Aim::kUpdate : Aim::kCheck,
                .to = action.to,
                .reloading = facts_.ReadsAlways() || facts_.ReadsAnew()};
    facts_.known.closing = false;
    facts_.process.named.clear();
  }
  attempt_.Begin(call, facts_.process.paused, now);
  if (call == EngineCall::kPause && !std::exchange(facts_.process.paused, true)) pause_began_ = now;
  if (call == EngineCall::kLoad || call == EngineCall::kReload) {
    attempt_.undo_to = std::exchange(facts_.known.weights, {});
    attempt_.loading = true;
    attempt_.may_undo =
        traits_.rolls_back && call == EngineCall::kLoad && !attempt_.undo_to.empty();
  }
}

void EngineCourse::Done(EngineCall call, const EngineAnswer& answer, Time now) {
  if (call == EngineCall::kProbe) return Probed(answer, now);
  EngineFacts::Known& known = facts_.known;
  EngineFacts::Process& process = facts_.process;
  if (answer.result == Result::kUnreachable) {
    // It was not told to pause. One that is found paused later was paused by another.
    if (call == EngineCall::kPause) process.paused = attempt_.was_paused;
    totals_.error = answer.why;
    return Lost(answer.gone, now);
  }
  if (std::exchange(unreachable_, false)) pause_.Reset();
  attempt_.waited = std::exchange(attempt_.repeating, false) || attempt_.waited;
  if (!IsTheSame(answer, now)) return;
  if (!answer.process.empty()) attempt_.waited = false;
  if (answer.result == Result::kAsleep) {
    // A pause that was not asked for has paused nothing.
    if (call == EngineCall::kPause && !attempt_.Aims(Aim::kCondemn)) {
      process.paused = attempt_.was_paused;
    }
    return Asleep(answer, now);
  }
  if (answer.unasked && !attempt_.Aims(Aim::kCheck)) {
    // It does not say whether it sleeps. The same call comes again, and until then nothing is news.
    totals_.error = fmt::format("{}: {}", ToString(call), answer.why);
    process.paused = attempt_.was_paused;
    attempt_.unasked = true;
    not_before_ = now + pause_.Next(random_);
    return;
  }
  if (known.closing) {
    // An open update takes memory in the engine, as much as the chunks that came whole.
    known.closing = answer.result == Result::kUnsure;
    if (known.closing) not_before_ = now + pause_.Next(random_);
    return;
  }
  if (attempt_.Aims(Aim::kResume)) return attempt_.step.reset();
  attempt_.AddTime(call, now);
  if (call == EngineCall::kPause && answer.paused && !attempt_.was_paused && facts_.MayBeLeft()) {
    process.spoiled = true;
    totals_.error = fmt::format(
        "it was found paused, by a receiver that has ended or by somebody{}", kUnproven);
    ++totals_.failures;
    return EndAttempt(false, now);
  }
  const std::optional<EngineCall> next =
      answer.done() ? Succeeded(call, answer, now) : Refused(call, answer, now);
  if (!next) return;
  if (next == EngineCall::kResume) known.weights = attempt_.goal();
  attempt_.step = next;
}

std::optional<EngineCall> EngineCourse::Succeeded(EngineCall call, const EngineAnswer& answer,
                                                  Time now) {
  EngineFacts::Known& known = facts_.known;
  facts_.Learn(call, answer);
  attempt_.Done(call);
  if (call == EngineCall::kResume) {
    facts_.process.paused = false;
    totals_.last_pause_seconds = std::chrono::duration<double>(now - pause_began_).count();
    totals_.pause_seconds += totals_.last_pause_seconds;
    const bool failed = attempt_.waited || (attempt_.Aims(Aim::kUndo) && attempt_.repeats);
    // While an answer was awaited, another process may have taken the place of the one before.
    attempt_.confirms = failed && traits_.asks;
    if (attempt_.confirms) return EngineCall::kAsk;
    GoOn(now);
    return std::nullopt;
  }
  if (call == EngineCall::kAsk && std::exchange(attempt_.confirms, false)) {
    known.unknown = true;  // an attempt that follows begins as after any failure
    if (answer.held.empty() || answer.held == attempt_.goal()) {
      GoOn(now);
      return std::nullopt;
    }
    totals_.error = "it was resumed, and no longer holds what it was paused with";
    ++totals_.failures;
    known.served = known.weights = {};
    EndAttempt(true, now);
    return std::nullopt;
  }
  if (attempt_.Aims(Aim::kCondemn)) {
    Condemn(now);
    return std::nullopt;
  }
  const auto next = attempt_.After(call, traits_, facts_.MayFollow(), facts_.process.doubtful);
  if (next == EngineCall::kPrepare && call == EngineCall::kAsk && answer.held.empty()) {
    attempt_.attach_tried = true;
    return EngineCall::kAttach;
  }
  if (next) return next;
  if (attempt_.Aims(Aim::kCheck)) {
    attempt_.step.reset();
    checks_.End("");
  } else {
    GoOn(now);
  }
  return std::nullopt;
}

std::optional<EngineCall> EngineCourse::Refused(EngineCall call, const EngineAnswer& answer,
                                                Time now) {
  EngineFacts::Known& known = facts_.known;
  const bool refused = answer.result == Result::kRefused;
  const bool undoes = attempt_.Aims(Aim::kUndo);
  // On the way back it proves only that it is not at the version before.
  if (refused && answer.drifted && !undoes && !std::exchange(attempt_.drifted, true)) {
    Drifted(call, answer.why, now);
    return std::nullopt;
  }
  facts_.Doubt(call, answer, attempt_.undo_to);
  // It has said what it holds, and its bytes may be other ones.
  if (refused && call == EngineCall::kAttach && !(known.weights == known.served)) {
    known.weights = {};
  }
  if (call == EngineCall::kAttach || call == EngineCall::kPrepare || answer.only_anew) {
    known.only_anew = answer.only_anew;
  }
  if (const auto next = refused ? Instead(call, answer) : std::nullopt) return next;
  const bool of_both =
      call == EngineCall::kPrepare || (call == EngineCall::kAttach && !answer.only_anew);
  const bool both = of_both && !attempt_.refusal.empty() && attempt_.refusal != answer.why;
  const std::string_view spoiled = refused ? kSpoiled : kUnproven;
  totals_.error =
      fmt::format("{}{}: {}{}{}", undoes ? attempt_.why_undone + "; " : "", ToString(call),
                  answer.why, both ? fmt::format(" (at first: {})", attempt_.refusal) : "",
                  facts_.process.spoiled && !answer.only_anew ? spoiled : "");
  Failed(call, answer, now);
  return std::nullopt;
}

std::optional<EngineCall> EngineCourse::Instead(EngineCall call, const EngineAnswer& answer) {
  EngineFacts::Known& known = facts_.known;
  EngineFacts::Process& process = facts_.process;
  if (attempt_.Aims(Aim::kCheck)) return std::nullopt;
  if (call == EngineCall::kRollback && traits_.proves) return EngineCall::kProve;
  // The first refusal may be a passing failure, unless no other attempt could show that.
  const bool may_pass =
      known.refusals == 0 && known.attempts < policy_.retries && !known.reload_only;
  if (call == EngineCall::kPrepare && traits_.asks) {
    if (attempt_.reloaded || attempt_.attach_tried) return std::nullopt;
    // It follows, and may have had no memory for the update.
    if (!answer.held.empty() && may_pass) {
      ++known.refusals;
      return std::nullopt;
    }
    attempt_.attach_tried = true;
    attempt_.refusal = answer.why;
    return EngineCall::kAttach;
  }
  const bool of_place = call == EngineCall::kPrepare || call == EngineCall::kAttach;
  if (!of_place || !facts_.MayReload()) return std::nullopt;
  // It holds another version, or cannot be followed.
  ++known.refusals;
  if (may_pass) return std::nullopt;
  if (!attempt_.reloaded) {
    attempt_.reloading = true;
    return EngineCall::kPause;
  }
  // An engine that surely read the directory serves it, also if it cannot be followed.
  process.spoiled = process.spoiled || process.doubted;
  if (process.spoiled) return std::nullopt;
  known.reload_only = true;
  known.why_reload =
      fmt::format("cannot be updated in place, so it reads the directory: {}", answer.why);
  return attempt_.After(EngineCall::kLoad, traits_, /*follows=*/false, process.doubtful);
}

bool EngineCourse::IsTheSame(const EngineAnswer& answer, Time now) {
  const auto seen = answer.out_of_step ? ProcessNames::Seen::kSame : names_.See(answer.process);
  if (answer.out_of_step || seen == ProcessNames::Seen::kSeveral) {
    // It is left alone until another process is in its place.
    totals_.error = answer.out_of_step ? answer.why : std::string(kSeveral);
    ++totals_.failures;
    if (attempt_.Aims(Aim::kCheck)) checks_.End(totals_.error);
    attempt_.step.reset();
    facts_.known.served = facts_.known.weights = {};
    facts_.known.given_up = target_;
    facts_.process.out = facts_.known.unknown = true;
    facts_.known.closing = facts_.known.verified = false;
    not_before_ = {};
    probe_.at = now + policy_.probe_every;
    return false;
  }
  if (seen == ProcessNames::Seen::kSame) return true;
  probe_.denials = 0;
  if (seen == ProcessNames::Seen::kFirst) return true;
  if (attempt_.Aims(Aim::kCheck)) checks_.End("it has started anew");
  attempt_.step.reset();
  facts_.Forget(/*same=*/false);
  not_before_ = now;
  return false;
}

uint64_t EngineCourse::AskCheck() {
  const uint64_t number = checks_.Ask();
  if (facts_.ReadsAlways() && !attempt_.Aims(Aim::kCheck)) checks_.Refuse(facts_.known.why_reload);
  return number;
}

void EngineCourse::Drifted(EngineCall call, const std::string& why, Time now) {
  ++totals_.drifts;
  totals_.error = fmt::format("{}: {}", ToString(call), why);
  if (attempt_.Aims(Aim::kCheck)) checks_.End(why, true);
  facts_.Drift();
  if (policy_.failure == EngineFailure::kStayPaused || policy_.failure == EngineFailure::kTakeOut) {
    attempt_.aim = Aim::kCondemn;
    attempt_.step = EngineCall::kPause;
    return;
  }
  // The next prepare makes the update ready that heals it.
  if (attempt_.Aims(Aim::kCheck)) {
    attempt_.step.reset();
    not_before_ = now;
  } else {
    attempt_.step = EngineCall::kPrepare;
  }
}

void EngineCourse::Condemn(Time now) {
  attempt_.step.reset();
  facts_.known.given_up = attempt_.to;
  facts_.known.closing = traits_.asks && facts_.known.unknown;
  facts_.process.out = policy_.failure == EngineFailure::kTakeOut;
  not_before_ = {};
  probe_.at = now + policy_.probe_every;
}

void EngineCourse::Failed(EngineCall call, const EngineAnswer& answer, Time now) {
  ++totals_.failures;
  facts_.known.unknown = true;
  if (attempt_.Aims(Aim::kCheck)) {
    attempt_.step.reset();
    // The engine goes on with what it serves. It is probed at once, since the call may have failed
    // because another process has taken its place.
    probe_.at = now;
    return checks_.End(std::exchange(totals_.error, {}));
  }
  const bool unsure = answer.result == Result::kUnsure;
  // A hook that said no has changed nothing; an engine whose load failed may be at no version, and
  // one that has read the directory is at another one.
  const bool unknown = traits_.pauses ? !(facts_.known.weights == facts_.known.served) : unsure;
  if (unknown) facts_.known.served = {};
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
      facts_.process.pause_lost = unsure;
      // An attempt from the beginning would heal what nobody wants healed.
      if (attempt_.Aims(Aim::kCondemn))
        return facts_.known.attempts < policy_.retries ? RepeatStep(now) : Condemn(now);
      // One that was found paused may be so because of what it holds.
      if (facts_.known.weights.empty() ||
          (answer.paused && !(facts_.known.weights == facts_.known.served))) {
        return EndAttempt(true, now);
      }
      // Nothing was loaded, so the engine may go on; and a pause that failed may have been one.
      attempt_.undo_to = facts_.known.weights;
      return attempt_.Undo(EngineCall::kResume, /*again=*/true, totals_.error);
    case EngineCall::kReload:
      if (!answer.corrupts || facts_.process.doubtful) break;
      attempt_.undo_to = facts_.known.weights;  // nothing was touched
      return attempt_.Undo(EngineCall::kResume, /*again=*/false, totals_.error);
    case EngineCall::kResume:
      facts_.known.served = {};
      return RepeatStep(now);
    case EngineCall::kName:
      if (attempt_.Aims(Aim::kUndo)) return RepeatStep(now);
      break;
    case EngineCall::kRollback:
      // A plug-in that is told twice says what it holds then.
      if (traits_.asks && unsure) return RepeatStep(now);
      return EndAttempt(unsure, now);
    case EngineCall::kSample:
    case EngineCall::kProve:
      if (unsure) return RepeatStep(now);
      if (attempt_.Aims(Aim::kUndo)) return EndAttempt(false, now);
      facts_.known.verified = false;
      facts_.process.doubtful = true;
      break;
    default:
      break;
  }
  if (policy_.failure == EngineFailure::kRollback && attempt_.may_undo) {
    return attempt_.Undo(EngineCall::kRollback, /*again=*/false, totals_.error);
  }
  EndAttempt(repeats, now);
}

void EngineCourse::RepeatStep(Time now) {
  if (facts_.known.attempts >= policy_.retries) return EndAttempt(false, now);
  ++facts_.known.attempts;
  ++totals_.retries;
  attempt_.repeating = true;
  not_before_ = now + pause_.Next(random_);
}

void EngineCourse::EndAttempt(bool may_repeat, Time now) {
  attempt_.step.reset();
  ++facts_.known.attempts;
  if (may_repeat && facts_.known.attempts <= policy_.retries &&
      (!facts_.process.spoiled || traits_.prepares)) {
    ++totals_.retries;
    not_before_ = now + pause_.Next(random_);
    return;
  }
  facts_.known.given_up = attempt_.to;
  const bool rollback = policy_.failure == EngineFailure::kRollback && attempt_.loading;
  if (rollback && facts_.process.paused && facts_.known.weights.empty() && !facts_.process.spoiled)
    totals_.error += kLeftPaused;
  // An update that is left open takes memory in the engine.
  facts_.known.closing = traits_.asks && facts_.known.unknown;
  facts_.process.out = policy_.failure == EngineFailure::kTakeOut && attempt_.loading;
  not_before_ = {};
  probe_.at = now + policy_.probe_every;
}

void EngineCourse::GoOn(Time now) {
  if (attempt_.Aims(Aim::kUndo)) {
    facts_.known.served = facts_.known.weights;
    return EndAttempt(attempt_.repeats, now);
  }
  probe_.error.clear();
  totals_.error.clear();
  ++totals_.updates;
  totals_.last_prepare_seconds = attempt_.prepare_seconds;
  totals_.last_load_seconds = attempt_.load_seconds;
  facts_.known.served = facts_.known.weights = attempt_.to;
  facts_.known.given_up = {};
  attempt_.step.reset();
  facts_.known.attempts = facts_.known.refusals = 0;
  pause_.Reset();
  not_before_ = {};
  facts_.known.unknown = unreachable_ = facts_.dropped = false;
  probe_.at = now + policy_.probe_every;
  if (!traits_.checks) facts_.process.doubtful = false;
  // What has come from an earlier receiver, or out of a sleep, is compared beside its requests.
  if (!facts_.known.verified && traits_.checks) checks_.Ask();
  if (facts_.ReadsAlways()) checks_.Refuse(facts_.known.why_reload);
}

void EngineCourse::HoldRefused(Time now) {
  facts_.known.unknown = facts_.known.unknown || attempt_.step;
  attempt_.step.reset();  // a check that was begun begins anew
  not_before_ = now + kHoldPause;
}

void EngineCourse::Asleep(const EngineAnswer& answer, Time now) {
  // The results of checks that have ended stay.
  if (attempt_.Aims(Aim::kCheck)) checks_.End(answer.why);
  // It was to be paused for good. Sleep holds its requests as well.
  if (attempt_.Aims(Aim::kCondemn)) Condemn(now);
  facts_.known.held_back = facts_.known.held_back || facts_.StaysPaused(policy_.failure);
  attempt_.step.reset();
  facts_.known.asleep = true;
  facts_.process.paused = false;  // it resumes by itself when it wakes
  facts_.dropped = facts_.dropped || answer.dropped;
  facts_.known.why_asleep = answer.why;
  facts_.known.served = {};
  probe_.at = now + policy_.probe_every;
}

void EngineCourse::Woke(const std::string& named) {
  // An engine that wakes resumes its requests by itself. What it has kept is what it was, which a
  // check of all of it shows when it serves; what it has dropped is read anew, and then proven.
  const bool known = !facts_.process.named.empty() && !named.empty();
  const bool anew = known && named != facts_.process.named && named != VersionName(attempt_.to);
  const bool stays = facts_.known.held_back && !anew, out = facts_.process.out && !anew;
  const std::string before = facts_.process.named;
  const Identity given_up = facts_.known.given_up;
  facts_.Forget(/*same=*/!anew);
  facts_.process.out = false;
  pause_.Reset();
  not_before_ = {};
  if (!stays) return;
  // It answers from what it was left paused for: it is paused again, and left so.
  facts_.process.out = out;
  facts_.process.named = before;
  // A newer version may have been begun, and was not tried.
  attempt_ = {.aim = Aim::kCondemn,
              .step = EngineCall::kPause,
              .to = given_up.empty() ? attempt_.to : given_up};
}

void EngineCourse::Lost(bool gone, Time now) {
  if (!std::exchange(unreachable_, true)) {
    ++totals_.failures;
    pause_.Reset();
  }
  // The results of checks that have ended stay.
  if (attempt_.Aims(Aim::kCheck)) checks_.End(totals_.error);
  // When it can be reached again, it may be another process.
  attempt_.step.reset();
  probe_.error.clear();
  probe_.denials = 0;
  facts_.Forget(/*same=*/!gone);
  not_before_ = now + pause_.Next(random_, policy_.reach_every);
}

void EngineCourse::Probed(const EngineAnswer& answer, Time now) {
  probe_.at = now + policy_.probe_every;
  if (answer.result == Result::kUnreachable) {
    totals_.error = answer.why;
    return Lost(answer.gone, now);
  }
  if (answer.result == Result::kAsleep) {
    probe_.error.clear();
    unreachable_ = false;
    return Asleep(answer, now);
  }
  if (answer.result == Result::kUnsure) {
    probe_.error = fmt::format("{}: {}", ToString(EngineCall::kProbe), answer.why);
    if (unreachable_) not_before_ = now + pause_.Next(random_, policy_.reach_every);
    return;
  }
  if (facts_.known.asleep && !answer.done()) {
    probe_.error = fmt::format("{}: {}", ToString(EngineCall::kProbe), answer.why);
    return;
  }
  probe_.error.clear();
  if (facts_.known.asleep) return Woke(answer.version);
  if (std::exchange(unreachable_, false)) {
    pause_.Reset();
    not_before_ = {};
    return;
  }
  if (facts_.process.pause_lost && answer.paused && !facts_.process.paused) {
    attempt_ = {.aim = Aim::kResume, .step = EngineCall::kResume, .to = attempt_.to};
    not_before_ = now;
  }
  if (answer.version.empty()) return;
  if (facts_.known.served.empty()) {
    // The first probe after the version was given up tells which version it names. An update whose
    // answer was cut may be done later.
    if (facts_.process.named.empty() || answer.version == VersionName(attempt_.to))
      facts_.process.named = answer.version;
    if (answer.version == facts_.process.named) return;
  } else {
    facts_.process.named = VersionName(facts_.known.served);
    if (answer.version == facts_.process.named) {
      probe_.denials = 0;
      return;
    }
  }
  if (++probe_.denials >= kDenials) return;
  totals_.error =
      fmt::format("named version \"{}\" instead of \"{}\": it started anew, or somebody changed it",
                  answer.version, facts_.process.named);
  // A plug-in says with its next answer whether it is another process.
  facts_.process.out = false;
  facts_.Forget(/*same=*/traits_.asks);
  not_before_ = {};
}

const EngineCourse::Check* EngineCourse::View::CheckAfter(uint64_t number) const {
  const auto check =
      std::ranges::find_if(checks, [number](const Check& c) { return c.number >= number; });
  return check == checks.end() ? nullptr : &*check;
}

EngineCourse::View EngineCourse::view() const {
  View view = totals_;
  view.checks = checks_.ended();
  view.served = facts_.known.served;
  if (!probe_.error.empty()) view.error = probe_.error;
  if (view.error.empty()) view.error = facts_.known.why_reload;
  if (facts_.known.asleep && probe_.error.empty()) view.error = facts_.known.why_asleep;
  view.verified = facts_.known.verified && !facts_.known.served.empty();
  view.paused = facts_.process.paused;
  view.attempts = facts_.known.attempts;
  const bool waits = !attempt_.step || attempt_.repeating;
  if (facts_.process.out) {
    view.state = EngineState::kOut;
  } else if (facts_.known.asleep) {
    view.state = EngineState::kAsleep;
  } else if (facts_.process.spoiled && !attempt_.step && !unreachable_ && !traits_.prepares) {
    view.state = EngineState::kPaused;
  } else if (unreachable_) {
    view.state = EngineState::kUnreachable;
  } else if (target_.empty()) {
    view.state = EngineState::kWaiting;
  } else if (attempt_.unasked && attempt_.step) {
    view.state = EngineState::kRetrying;
  } else if (facts_.known.attempts > 0 && waits && !(facts_.known.given_up == target_)) {
    view.state = EngineState::kRetrying;
  } else if (attempt_.step && (facts_.process.paused || !traits_.prepares)) {
    view.state = EngineState::kUpdating;
  } else if (facts_.known.served == target_) {
    view.state = EngineState::kServing;
  } else if (facts_.known.given_up == target_) {
    view.state = facts_.process.paused ? EngineState::kPaused : EngineState::kBehind;
  } else {
    view.state = EngineState::kPreparing;
  }
  return view;
}

}  // namespace deltawire::receiver
