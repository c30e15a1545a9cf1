// One attempt to bring an engine to a version, or to check its memory: the calls made so far, and
// the one that comes next. Its owner synchronizes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/identity.h"
#include "common/base/sync.h"
#include "receiver/engine/engine_call.h"

namespace deltawire::receiver {

struct EngineAttempt {
  /// kCheck -> kCondemn (drift was found, and the engine stays paused), kUpdate -> kUndo or
  /// kCondemn.
  enum class Aim : uint8_t {
    kUpdate,
    kCheck,
    kUndo,     ///< back to the version before
    kCondemn,  ///< to a pause that stays
    kResume,   ///< the engine obeyed late a pause that was taken back
  };
  using Time = SteadyClock::time_point;

  /// Returns true if the attempt goes on and has this aim.
  bool Aims(Aim a) const { return step && aim == a; }
  /// Returns the version that the engine has when the attempt succeeds.
  const Identity& goal() const { return Aims(Aim::kUndo) ? undo_to : to; }
  /// Returns the version that the next call is about.
  const Identity& subject() const;
  /// Returns true if the directory must stay at the version from `call` on.
  bool Holds(EngineCall call, const EngineTraits& traits) const;
  /// Returns true if a sleeping engine must not get `call`, so that its sleep is to be looked for.
  /// From a reload on vLLM says that it sleeps, because this receiver has paused it.
  bool Looks(EngineCall call) const;
  /// Returns the call that follows `call`, which was done; none: the attempt has succeeded.
  /// `follows`: after a reload the engine is expected to follow. `doubtful`: all of its memory is
  /// to be compared.
  std::optional<EngineCall> After(EngineCall call, const EngineTraits& traits, bool follows,
                                  bool doubtful) const;
  void Begin(EngineCall call, bool paused, Time now);
  /// Records that `call` was done.
  void Done(EngineCall call);
  /// Adds the time of `call`, which has ended.
  void AddTime(EngineCall call, Time now);
  /// Turns back to the version before by `call`, because of `why`. `again`: to try once more.
  void Undo(EngineCall call, bool again, const std::string& why);

  Aim aim = Aim::kUpdate;
  std::optional<EngineCall> step = {};  ///< the next call, or the one under way; none: it has ended
  Identity to = {};
  bool reloading = false;  ///< it is to read the directory
  Identity undo_to = {};   ///< the state of the weights before the load
  Time call_began = {};
  /// Seconds of the calls that ask, attach and prepare, and of those that load.
  double prepare_seconds = 0, load_seconds = 0;
  bool was_paused = false;  ///< before the call under way
  bool unasked = false;     ///< the next call was not made when it was due
  bool repeating = false;   ///< the next call was made before, and has failed
  bool waited = false;      ///< such a call, and no rank has named its process since
  bool attach_tried = false;
  bool reloaded = false;
  bool reading = false;         ///< kReload was made, and since then only kAttach and kPrepare
  bool prepared = false;        ///< kPrepare was done
  bool loading = false;         ///< kLoad or kReload was begun
  bool may_undo = false;        ///< undo_to is known, and the kind has a way back
  bool repeats = false;         ///< try again after kUndo
  bool confirms = false;        ///< resumed, and asked what it holds
  bool drifted = false;         ///< drift was found in it
  std::string refusal = {};     ///< of kPrepare, for the message if kAttach is refused, too
  std::string why_undone = {};  ///< the error after which it became kUndo
};

}  // namespace deltawire::receiver
