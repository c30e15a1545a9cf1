// What probes and calls tell of the engine's process: lost, started anew, asleep, awake.
#include <utility>

#include "receiver/engine/engine_course.h"

namespace deltawire::receiver {
namespace {

using Result = EngineAnswer::Result;

// An engine that so often names another version than it was told to is no longer believed.
constexpr int kDenials = 3;

}  // namespace

bool EngineCourse::StaysPaused() const {
  const bool given_up = !given_up_.empty() && policy_.failure != EngineFailure::kRetry;
  return out_ || (paused_ && (spoiled_ || given_up));
}

void EngineCourse::Asleep(const EngineAnswer& answer, Time now) {
  // What a check that has ended has found stays.
  if (std::exchange(checking_, false) && step_) EndCheck(answer.why);
  // It was to be paused for good. Sleep holds its requests as well.
  if (condemned_ && step_) Condemn(now);
  held_back_ = held_back_ || StaysPaused();
  step_.reset();
  asleep_ = true;
  paused_ = false;  // it resumes by itself when it wakes
  dropped_ = dropped_ || answer.dropped;
  why_asleep_ = answer.why;
  served_ = {};
  probe_at_ = now + policy_.probe_every;
}

void EngineCourse::Woke(const std::string& named) {
  // An engine that wakes resumes its requests by itself. What it has kept is what it was, which a
  // check of all of it shows when it serves; what it has dropped is read anew, and then proven.
  const bool known = !named_.empty() && !named.empty();
  const bool anew = known && named != named_ && named != VersionName(to_);
  const bool stays = held_back_ && !anew, out = out_ && !anew;
  const std::string before = named_;
  const Identity given_up = given_up_;
  BeginAnew(/*same=*/!anew);
  out_ = false;
  pause_ = {};
  not_before_ = {};
  if (!stays) return;
  // It answers from what it was left paused for: it is paused again, and left so.
  out_ = out;
  named_ = before;
  if (!given_up.empty()) to_ = given_up;  // a newer one may have been begun, and was not tried
  condemned_ = true;
  step_ = EngineCall::kPause;
}

void EngineCourse::Unasked(EngineCall call, const EngineAnswer& answer, Time now) {
  totals_.error = fmt::format("{}: {}", ToString(call), answer.why);
  paused_ = was_paused_;
  unasked_ = true;
  not_before_ = now + NextPause(policy_.longest_pause);
}

void EngineCourse::Lost(bool gone, Time now) {
  if (!std::exchange(unreachable_, true)) {
    ++totals_.failures;
    pause_ = {};
  }
  // Of a check that has ended, what it found stays.
  if (std::exchange(checking_, false) && step_) EndCheck(totals_.error);
  // When it can be reached again, it may be another process.
  step_.reset();
  probe_error_.clear();
  denials_ = 0;
  BeginAnew(/*same=*/!gone);
  not_before_ = now + NextPause(policy_.reach_every);
}

void EngineCourse::BeginAnew(bool same) {
  served_ = weights_ = given_up_ = {};
  attempts_ = refusals_ = 0;
  closing_ = reload_only_ = only_anew_ = false;
  asleep_ = held_back_ = verified_ = repeating_ = false;
  why_reload_.clear();
  unknown_ = true;
  if (same) return;
  out_ = paused_ = pause_lost_ = spoiled_ = doubted_ = corrupts_ = false;
  doubtful_ = unproven_ = false;
  named_.clear();
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
  if (asleep_ && !answer.done()) {
    probe_error_ = fmt::format("{}: {}", ToString(EngineCall::kProbe), answer.why);
    return;
  }
  probe_error_.clear();
  if (asleep_) return Woke(answer.version);
  if (std::exchange(unreachable_, false)) {
    pause_ = {};
    not_before_ = {};
    return;
  }
  if (pause_lost_ && answer.paused && !paused_) {
    resuming_ = true;
    step_ = EngineCall::kResume;
    not_before_ = now;
  }
  if (answer.version.empty()) return;
  if (served_.empty()) {
    // What it names is known from the first probe after the version was given up. An update whose
    // answer was cut may be done later.
    if (named_.empty() || answer.version == VersionName(to_)) named_ = answer.version;
    if (answer.version == named_) return;
  } else {
    named_ = VersionName(served_);
    if (answer.version == named_) {
      denials_ = 0;
      return;
    }
  }
  if (++denials_ >= kDenials) return;
  totals_.error =
      fmt::format("named version \"{}\" instead of \"{}\": it started anew, or somebody changed it",
                  answer.version, named_);
  // A plug-in says with its next answer whether it is another process.
  out_ = false;
  BeginAnew(/*same=*/traits_.asks);
  not_before_ = {};
}

}  // namespace deltawire::receiver
