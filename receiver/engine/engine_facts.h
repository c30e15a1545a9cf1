// Facts that a receiver knows of an engine: the version in its memory, how far that is trusted, and
// the state of its process. Its owner synchronizes.
#pragma once

#include <bit>
#include <cstdint>
#include <string>

#include "common/base/identity.h"
#include "receiver/engine/engine_call.h"

namespace deltawire::receiver {

class EngineFacts {
 public:
  /// Facts that stand until the engine is lost, or wakes from a sleep.
  struct Known {
    bool unknown = true;  ///< it is asked first what it holds
    Identity served;      ///< the version that it answers from; empty: not known, or nothing
    /// The state that its weights wholly are. Empty if not known, as at first: a receiver may have
    /// died in the middle of a load.
    Identity weights;
    Identity given_up;  ///< no further attempt to bring it to this version
    uint32_t attempts = 0;
    /// Attempts that ended since it last served because it holds another version, or cannot be
    /// followed. A new version does not reset the count, since one may come with each attempt.
    uint32_t refusals = 0;
    bool closing = false;      ///< the version was given up, and its update is to be closed
    bool reload_only = false;  ///< it cannot be followed, so it reads the directory each time
    std::string why_reload;    ///< why reload_only is set
    uint32_t reloads = 0;      ///< since reload_only is set
    /// Its last refusal says that no reload would help, as for another model's shapes.
    bool only_anew = false;
    bool verified = false;  ///< all of its memory was compared, and loaded well since
    bool asleep = false;
    std::string why_asleep;
    bool held_back = false;  ///< it sleeps, and is to be paused again when it wakes
  };
  /// Facts of the engine's process, which the next process does not inherit.
  struct Process {
    std::string named;  ///< the version that it is expected to name; empty: not known
    bool out = false;
    bool paused = false;      ///< told to pause, and not resumed since
    bool pause_lost = false;  ///< a pause that was taken back may still be under way
    bool unproven = false;    ///< it has loaded, and no part of its memory was compared since
    bool doubtful = false;    ///< a load may have left anything: all is compared before it resumes
    bool corrupts = false;    ///< its own reload would leave wrong weights
    /// The answer of a reload was lost: another one may follow, and only a kAttach shows that it is
    /// whole.
    bool doubted = false;
    /// A reload has failed in it, or its answer was lost and nothing can show what it did: only a
    /// kAttach, which compares all bytes, or another process brings it back.
    bool spoiled = false;
  };

  explicit EngineFacts(const EngineTraits& traits) : traits_(traits) {}

  /// Returns true if the engine is to be brought to `target`.
  bool Wants(const Identity& target) const;
  bool MayReload() const { return !process.spoiled && !known.only_anew && !process.corrupts; }
  /// Returns true if it cannot be updated in place, and may be told to read the directory.
  bool ReadsAlways() const { return known.reload_only && MayReload(); }
  /// Returns true if an engine that has read the directory is expected to follow. One that could
  /// not is tried again after 1, 2, 4, ... reloads: it may have lacked memory.
  bool MayFollow() const { return !known.reload_only || std::has_single_bit(known.reloads); }
  /// Returns true if it is to read the directory since its weights are gone: a prepare would add to
  /// the bytes that its memory has now.
  bool ReadsAnew() const { return dropped && traits_.asks && MayReload(); }
  /// Returns the first call of a check, or of an update.
  EngineCall FirstCall(bool of_check) const;
  /// Returns true if it is to stay paused, and the receiver does nothing about that by itself.
  bool StaysPaused(EngineFailure failure) const;
  /// Returns true if an earlier receiver may have left it paused because of a reload, and it cannot
  /// be asked which version it holds.
  bool MayBeLeft() const { return traits_.reload_spoils && !traits_.asks && known.weights.empty(); }

  /// Records what `call`, which was done, shows.
  void Learn(EngineCall call, const EngineAnswer& answer);
  /// Records how far a load or reload that was not done can be trusted. `before`: its weights.
  void Doubt(EngineCall call, const EngineAnswer& answer, const Identity& before);
  /// Records that its memory is none of the versions.
  void Drift();
  /// Forgets what is known. `same`: it may be the same process, so what was done to it stays.
  void Forget(bool same);

  Known known;
  Process process;
  bool dropped = false;  ///< it sleeps, or has slept, without its weights: it is to read them anew

 private:
  const EngineTraits traits_;
};

}  // namespace deltawire::receiver
