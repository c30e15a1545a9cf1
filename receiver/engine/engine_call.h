// The calls to an engine, the calls that each kind of engine has, and the answers. EngineCourse
// orders the calls, and an EngineHook makes them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/identity.h"
#include "common/config/engine_options.h"

namespace deltawire::receiver {

/// The answer to a call that ends because the daemon stops.
inline constexpr const char* kStopping = "the receiver is stopping";

enum class EngineCall : uint8_t {
  kProbe,     ///< ask whether it answers, and which version it names
  kAsk,       ///< ask which version its ranks hold, in step; reads no weights
  kClear,     ///< discard a prepared update, if there is one
  kPrepare,   ///< prepare the committed version; the served one does not change
  kAttach,    ///< find the parameters, which must hold the committed version
  kPause,     ///< hold all requests
  kReload,    ///< read the directory, after a refused kAttach; forgets the parameters
  kLoad,      ///< load the version
  kFlush,     ///< discard caches that older weights have filled
  kName,      ///< name the version in answers
  kResume,    ///< go on with the requests
  kRollback,  ///< undo the last kLoad
  kSample,    ///< check which version it holds, and the next part of its memory
  kProve,     ///< check which version it holds, and all of its memory
  kCheck,     ///< compare all of its memory with the version's digests; changes nothing
};
/// Returns the call's name in messages: "probe", "prepare", ...
std::string_view ToString(EngineCall call);

/// The calls that a kind of engine has. Every kind has kLoad.
struct EngineTraits {
  bool prepares = false;    ///< kPrepare, kReload; else kLoad reads the directory
  bool asks = false;        ///< kAsk, kAttach, kClear; else kPrepare does what they do
  bool pauses = false;      ///< kPause, kResume
  bool flushes = false;     ///< kFlush; else kLoad does it, or the program that it calls
  bool names = false;       ///< kName; else kLoad does it
  bool rolls_back = false;  ///< kRollback
  bool proves = false;      ///< kProve; with `asks` also kSample after each kLoad
  bool probes = false;      ///< kProbe
  bool sleeps = false;      ///< it may sleep, without its weights; no call reaches one that does
  bool checks = false;      ///< kCheck; and its kPrepare looks for drift, too
  /// A reload that the engine has failed leaves weights that no other reload is sure to repair.
  bool reload_spoils = false;
};
EngineTraits TraitsOf(EngineKind kind);

struct EngineAnswer {
  enum class Result : uint8_t {
    kDone,
    kRefused,      ///< the engine said no; `why` has its words
    kUnreachable,  ///< no connection: the engine was not asked
    kUnsure,       ///< asked, without an answer that could be understood: it may have done it
    kAsleep,       ///< not asked: it has freed its memory for a while
  };
  Result result = Result::kDone;
  std::string why;           ///< if not kDone
  std::string version;       ///< of kProbe: the version that the engine names
  Identity held = {};        ///< the version that all ranks say they hold; empty: not known
  std::string process = {};  ///< a name of the engine's process; empty: not said
  /// A refusal: nothing helps but another process of the engine.
  bool only_anew = false;
  /// A refusal: the engine's memory differs from the bytes that were written to it. The next
  /// kPrepare prepares an update that heals it.
  bool drifted = false;
  /// A refusal of kReload: it would leave wrong weights. Nothing was touched.
  bool corrupts = false;
  /// With kUnsure: the ranks' replies answer another call, so none of them counts.
  bool out_of_step = false;
  /// With kUnreachable: nothing listens at the address, so the engine's process has ended.
  bool gone = false;
  /// After kProbe and kPause: the engine was already paused.
  bool paused = false;
  /// With kAsleep: the engine has freed its weights. After it wakes, that memory is uninitialized.
  bool dropped = false;
  /// With kUnsure: the call was not made, since the engine does not say whether it sleeps.
  bool unasked = false;

  bool done() const { return result == Result::kDone; }
};

/// Returns the name of `id` in an engine's answers: its version number.
std::string VersionName(const Identity& id);

}  // namespace deltawire::receiver
