// How one engine is brought to each committed version: which call comes next, and what follows from
// its answer. Pure: a function of commits, answers and time. Owner: an EngineDriver (its lock).
//   ask -> prepare -> pause -> load -> flush -> sample -> name -> resume; or check, on request
// From the load on it is resumed only when it wholly has the version, or wholly the one before.
// States, and what follows from a failure: docs/lifecycle.md, "An engine, at the receiver".
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "common/base/engine_state.h"
#include "common/base/identity.h"
#include "common/base/sync.h"
#include "receiver/engine/engine_call.h"

namespace deltawire::receiver {

class EngineCourse {
 public:
  using Time = SteadyClock::time_point;
  using Nanos = std::chrono::nanoseconds;

  struct Policy {
    EngineFailure failure = EngineFailure::kRetry;
    uint32_t retries = 5;  ///< of one version, after the first attempt
    /// The pause before a retry doubles from the first to the longest, less a random part of up to
    /// half.
    std::chrono::milliseconds first_pause{200}, longest_pause{10000};
    /// While an engine cannot be reached it is tried at least this often, and without end.
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
  };

  /// The result of a check. `error` is empty if all of the memory is what it should be.
  struct Check {
    uint64_t number = 0;  ///< of the last request that it answers
    std::string error;    ///< the drift that it found, or why it could not be made
    bool drifted = false;
  };
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
    uint64_t drifts = 0;   ///< times that its memory was found to be other than what was written
    /// The last checks that ended, oldest first. Another one may follow at once, such as that of a
    /// healed engine, before a caller has read the result of its own.
    std::deque<Check> checks;

    Check last_check() const { return checks.empty() ? Check() : checks.back(); }
    /// Returns the first check that began after request `number`, or null if none has ended.
    const Check* CheckAfter(uint64_t number) const;
  };

  EngineCourse(const EngineTraits& traits, const Policy& policy);

  /// `id` is committed, and may be handed to the engine.
  void Ready(const Identity& id);
  Action Next(Time now) const;
  /// The call that Next named is about to be made.
  void Begin(const Action& action, Time now);
  void Done(EngineCall call, const EngineAnswer& answer, Time now);
  /// Asks for a check of the engine's memory, made once the engine serves what is ready. Returns
  /// the request's number, for View::CheckAfter.
  uint64_t AskCheck();
  /// The directory is not at the version that Next named, or not for long: the receiver changes it.
  void HoldRefused(Time now);

  View view() const;
  /// An attempt is under way: the next Begin goes on with it.
  bool in_attempt() const { return attempt_.step.has_value(); }
  /// The engine is paused and the update goes on: a stop had better wait for the next calls.
  bool in_pause() const { return process_.paused && attempt_.step.has_value(); }

 private:
  EngineCall First() const;
  bool Wanted() const;
  /// The call has the engine read the directory.
  bool Reads(EngineCall call) const;
  /// The engine cannot be updated in place, and may be told to read the directory.
  bool ReadsAlways() const { return known_.reload_only && MayReload(); }
  /// Its weights are gone, and a prepare would add to whatever is in their memory now.
  bool ReadsAnew() const { return dropped_ && traits_.asks && MayReload(); }
  bool MayReload() const { return !process_.spoiled && !known_.only_anew && !process_.corrupts; }
  bool Holds(EngineCall call) const;
  /// Adds a call's time to the attempt's.
  void AddTime(EngineCall call, Time now);
  /// The call that comes after this one was done; none: the version is served.
  std::optional<EngineCall> After(EngineCall call) const;
  /// The call that takes the place of this one, which was refused; none: that is a failure.
  std::optional<EngineCall> Instead(EngineCall call, const std::string& why);
  /// Lets the engine read the directory, as `why` demands; none: not yet.
  std::optional<EngineCall> Reload(const std::string& why);
  bool CheckWanted() const;
  void EndCheck(std::string error, bool drifted = false);
  /// Notes how far a load or reload that was not done can be trusted.
  void Doubt(EngineCall call, const EngineAnswer& answer);
  /// Notes what the answer of a call that was done shows.
  void Learn(EngineCall call, const EngineAnswer& answer);
  /// False: the answer comes from another process than the last, or must not be believed, and all
  /// that follows from this was done.
  bool IsTheSame(const EngineAnswer& answer, Time now);
  /// An engine of which only its reloads are known was paused before this receiver has paused it:
  /// one that has ended may have left it so in a reload, or because of one.
  bool LeftByAnother() const;
  void Spoil(Time now);
  /// Leaves the engine alone until another process is in its place.
  void TakeOut(Time now);
  /// Ends the checks of an engine that reads the directory: where its memory has what is not known.
  void RefuseCheck();
  /// The engine answers from memory that has drifted, as `why` says.
  void Drifted(EngineCall call, const std::string& why, Time now);
  /// The engine is paused, and left so: its memory has drifted, and nobody wants it healed.
  void Condemn(Time now);
  void Probed(const EngineAnswer& answer, Time now);
  /// It sleeps, or sleeps on: no call is made but probes, and none has failed.
  void Asleep(const EngineAnswer& answer, Time now);
  /// It was asleep, and is no more: it is paused again if it was to stay so, and else brought to
  /// the version before it counts as serving one. `named`: what it says that it serves.
  void Woke(const std::string& named);
  /// It was not asked, since it does not say whether it sleeps: the same call comes again later,
  /// and until then it is what it was last known to be.
  void Unasked(EngineCall call, const EngineAnswer& answer, Time now);
  /// It was left paused, and what is done about that is not for this course to begin by itself.
  bool StaysPaused() const;
  void Failed(EngineCall call, const EngineAnswer& answer, Time now);
  void Lost(bool gone, Time now);
  /// Forgets what is known of the engine. `same`: it may be the same process, so that what was done
  /// to it stays.
  void BeginAnew(bool same);
  /// Makes the same call again later, if an attempt is left.
  void RepeatStep(Time now);
  /// Ends an attempt that failed. Another one comes later, if `may_repeat` and one is left.
  void EndAttempt(bool may_repeat, Time now);
  /// The engine is on its way back to the version before, as totals_.error says why, by `call`.
  void Undo(EngineCall call, bool repeats);
  /// `repeated`: an earlier resume of this attempt was not answered.
  void Resumed(bool repeated, Time now);
  /// It says what it holds, after a pause or a resume that was not answered.
  void Confirmed(const EngineAnswer& answer, Time now);
  /// The engine goes on with Known::weights.
  void Goes(Time now);
  void Serves(Time now);
  Nanos NextPause(std::chrono::milliseconds longest);

  const EngineTraits traits_;
  const Policy policy_;
  std::mt19937_64 random_;

  /// kCheck -> kCondemn (it has drifted, and stays paused), kUpdate -> kUndo or kCondemn.
  enum class Aim : uint8_t {
    kUpdate,
    kCheck,
    kUndo,     ///< back to the version before
    kCondemn,  ///< to a pause that stays
    kResume,   ///< a pause that was taken back has come late
  };
  /// The facts of one attempt, from its first call to its end; afterwards those of the last one.
  struct Attempt {
    Aim aim = Aim::kUpdate;
    std::optional<EngineCall> step = {};  // the next call, or the one under way; none: it has ended
    Identity to = {};
    bool reloading = false;  // it is to read the directory
    Identity undo_to = {};   // what Known::weights was before the load
    Time call_began = {};
    double prepare_seconds = 0, load_seconds = 0;
    bool was_paused = false;  // before the call under way
    bool unasked = false;     // the call to come was not made when it was due
    bool repeating = false;   // the call to come was made before, and has failed
    bool attach_tried = false;
    bool reloaded = false;
    bool prepared = false;        // kPrepare was done
    bool loading = false;         // kLoad or kReload was begun
    bool may_undo = false;        // undo_to is known, and the kind has a way back
    bool repeats = false;         // after kUndo
    bool confirms = false;        // it was resumed, and is asked what it holds
    bool drifted = false;         // drift was found in it
    std::string refusal = {};     // of kPrepare, for the message if kAttach is refused, too
    std::string why_undone = {};  // the error after which it became kUndo
  };
  /// Facts that stand until the engine is lost, or wakes from a sleep.
  struct Known {
    bool unknown = true;  // it is asked first what it holds
    Identity served;      // what it answers from; empty: not known, or nothing
    /// The state that its weights wholly are; empty: not known, as at first, since a receiver may
    /// have died in the middle of a load.
    Identity weights;
    Identity given_up;  // no further attempt to bring it to this version
    uint32_t attempts = 0;
    /// Attempts that ended since it last served because it holds another version, or cannot be
    /// followed. A new version does not end them: one may come with each attempt.
    uint32_t refusals = 0;
    bool closing = false;      // the version was given up, and its update is to be closed
    bool reload_only = false;  // it cannot be followed, so it reads the directory each time
    std::string why_reload;    // why reload_only is set
    /// The last that it has refused so says that no reload would help, as for another model's
    /// shapes.
    bool only_anew = false;
    bool verified = false;  // all of its memory was compared, and loaded well since
    bool asleep = false;
    std::string why_asleep;
    bool held_back = false;  // it sleeps, and is to be paused again when it wakes
  };
  /// Facts of the engine's process, of which another one inherits none.
  struct Process {
    std::string named;  // the version that it is expected to name; empty: not known
    bool out = false;
    bool paused = false;      // told to pause, and not resumed since
    bool pause_lost = false;  // a pause that was taken back may still be under way
    bool unproven = false;    // it has loaded, and no part of its memory was compared since
    bool doubtful = false;    // a load may have left anything: all is compared before it goes on
    bool corrupts = false;    // its own reload would leave wrong weights
    /// The answer of a reload was lost: another one may follow, and only a kAttach shows that it is
    /// whole.
    bool doubted = false;
    /// A reload has failed in it, or its answer was lost and nothing can show what it did: only a
    /// kAttach, which compares all bytes, or another process brings it back.
    bool spoiled = false;
  };
  bool Aims(Aim aim) const { return attempt_.step && attempt_.aim == aim; }

  Identity target_;  // the newest version that is ready
  Attempt attempt_;
  Known known_;
  Process process_;
  Time not_before_{}, probe_at_{}, pause_began_{};
  std::chrono::milliseconds pause_{0};  // before the last retry
  bool unreachable_ = false;
  bool dropped_ = false;  // it sleeps, or has slept, without its weights: it is to read them anew
  uint64_t checks_asked_ = 0, checks_begun_ = 0;
  int denials_ = 0;                     // probes that named another version than was expected
  std::string process_name_;            // empty: not known
  std::vector<std::string> processes_;  // the names of those before it
  std::string probe_error_;             // of the last probe
  View totals_;                         // all but state, served, paused and attempts
};

}  // namespace deltawire::receiver
