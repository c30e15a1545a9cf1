// The course of one engine from version to version: decides which call comes next, and what follows
// from its answer. A pure function of commits, answers and time; its owner synchronizes.
//   ask -> prepare -> pause -> load -> flush -> sample -> name -> resume; or check, on request
// From the load on, the engine is resumed only when it wholly has the version, or wholly the one
// before. docs/lifecycle.md, "An engine, at the receiver", has the states and failures.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <string>

#include "common/base/backoff.h"
#include "common/base/engine_state.h"
#include "common/base/identity.h"
#include "common/base/sync.h"
#include "receiver/engine/engine_attempt.h"
#include "receiver/engine/engine_call.h"
#include "receiver/engine/engine_checks.h"
#include "receiver/engine/engine_facts.h"
#include "receiver/engine/process_names.h"

namespace deltawire::receiver {

class EngineCourse {
 public:
  using Time = SteadyClock::time_point;

  struct Policy {
    EngineFailure failure = EngineFailure::kRetry;
    /// Retries of one version after the first attempt. Five take 3 to 6 s, longer than a passing
    /// failure; an engine that cannot be reached is tried without end.
    uint32_t retries = 5;
    std::chrono::milliseconds first_pause{200}, longest_pause{10000};
    /// The longest pause while an engine cannot be reached.
    std::chrono::milliseconds reach_every{2000};
    std::chrono::milliseconds probe_every{2000};
    uint64_t seed = 0;
  };

  struct Action {
    std::optional<EngineCall> call;  ///< none: nothing to do before `until`
    Identity to;                     ///< the version that the call is about
    /// True when the call reads the directory, or stands just before one that does. The directory
    /// must then be held at `to`, without a break, over all such calls in a row.
    bool hold = false;
    Time until = Time::max();
    /// Whether to ask first if the engine sleeps, since the call is not for one that does.
    bool looks = false;
    bool asleep = false;  ///< it slept when it was last asked
  };

  using Check = EngineCheck;
  struct View {
    EngineState state = EngineState::kWaiting;
    Identity served;  ///< empty: not known, or nothing
    /// All of its memory was compared with what it serves, since its process is known.
    bool verified = false;
    /// The last failure. Empty after a success, unless the engine cannot be updated in place: then
    /// it says why.
    std::string error;
    bool paused = false;
    uint32_t attempts = 0;  ///< failed ones of this version
    double last_pause_seconds = 0, pause_seconds = 0;
    /// Seconds of the last update's calls: of those that clear, attach and prepare, and of the
    /// others but the pause and the resume.
    double last_prepare_seconds = 0, last_load_seconds = 0;
    uint64_t updates = 0, failures = 0;
    uint64_t retries = 0;  ///< calls and whole attempts that were repeated after a failure
    uint64_t drifts = 0;   ///< times that its memory differed from the bytes that were written
    /// The last checks that ended, oldest first. Another one may follow at once, such as that of a
    /// healed engine, before a caller has read the result of its own.
    std::deque<Check> checks;

    Check last_check() const { return checks.empty() ? Check() : checks.back(); }
    /// Returns the first check that began after request `number`, or null if none has ended.
    const Check* CheckAfter(uint64_t number) const;
  };

  EngineCourse(const EngineTraits& traits, const Policy& policy);

  /// Records that `id` is committed, and may be handed to the engine.
  void Ready(const Identity& id);
  Action Next(Time now) const;
  /// Records that the call of `action`, which Next returned, is about to be made.
  void Begin(const Action& action, Time now);
  void Done(EngineCall call, const EngineAnswer& answer, Time now);
  /// Asks for a check of the engine's memory, made once the engine serves what is ready. Returns
  /// the request's number, for View::CheckAfter.
  uint64_t AskCheck();
  /// Records that the directory is not at the version that Next returned, since the receiver
  /// changes it.
  void HoldRefused(Time now);

  View view() const;
  /// Returns true during an attempt, with which the next Begin goes on.
  bool in_attempt() const { return attempt_.step.has_value(); }
  /// Returns true while the engine is paused for an update: a stop should wait for the next calls.
  bool in_pause() const { return facts_.process.paused && attempt_.step.has_value(); }

 private:
  using Aim = EngineAttempt::Aim;

  /// Handles a call of an attempt that was done. Returns the next one; none: all that follows was
  /// done.
  std::optional<EngineCall> Succeeded(EngineCall call, const EngineAnswer& answer, Time now);
  /// The same for a call that was not done.
  std::optional<EngineCall> Refused(EngineCall call, const EngineAnswer& answer, Time now);
  /// Returns the call that takes the place of `call`, which was refused; none: that is a failure.
  std::optional<EngineCall> Instead(EngineCall call, const EngineAnswer& answer);
  void Failed(EngineCall call, const EngineAnswer& answer, Time now);
  /// Returns false if the answer is not this process's to give, after doing all that follows.
  bool IsTheSame(const EngineAnswer& answer, Time now);
  /// Handles the answer that the engine's memory has drifted, as `why` says.
  void Drifted(EngineCall call, const std::string& why, Time now);
  /// Leaves the engine paused: its memory has drifted, and the policy does not heal it.
  void Condemn(Time now);
  void Probed(const EngineAnswer& answer, Time now);
  /// Makes no call but probes until the engine wakes. That is no failure.
  void Asleep(const EngineAnswer& answer, Time now);
  /// Pauses the engine again if it was to stay so, or brings it to the version before it counts as
  /// serving one. `named`: the version that it names.
  void Woke(const std::string& named);
  void Lost(bool gone, Time now);
  /// Makes the same call again later, if an attempt is left.
  void RepeatStep(Time now);
  /// Ends an attempt that failed. Another one comes later, if `may_repeat` and one is left.
  void EndAttempt(bool may_repeat, Time now);
  /// Ends an attempt after which the engine goes on, with the version or the one before.
  void GoOn(Time now);

  const EngineTraits traits_;
  const Policy policy_;
  Identity target_;  // the newest version that is ready
  EngineAttempt attempt_;
  EngineFacts facts_;
  EngineChecks checks_;
  ProcessNames names_;
  std::mt19937_64 random_;
  Backoff pause_;
  Time not_before_{}, pause_began_{};
  bool unreachable_ = false;
  struct {
    Time at{};
    std::string error;  // of the last one
    int denials = 0;    // that named another version than was expected, in a row
  } probe_;
  View totals_;  // all but state, served, paused, attempts and checks
};

}  // namespace deltawire::receiver
