// What can be asked of an engine, what of it each kind has, and how an answer is judged. Plain
// values, of any thread. The order of the calls is EngineCourse's; how they are made is an
// EngineHook's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/identity.h"
#include "common/config/engine_options.h"

namespace deltawire::receiver {

/// The answer of a call that ends because the daemon does.
inline constexpr const char* kStopping = "the receiver is stopping";

enum class EngineCall : uint8_t {
  kProbe,     ///< does it answer, and which version does it name?
  kAsk,       ///< what do its ranks hold, and do they answer in step? Reads no weights
  kClear,     ///< forget what was prepared, if anything was
  kPrepare,   ///< make the committed version ready; what is served does not change
  kAttach,    ///< find the parameters, which must hold the committed version
  kPause,     ///< hold all requests
  kReload,    ///< read the directory, where kAttach was refused; forgets the parameters
  kLoad,      ///< take the version in
  kFlush,     ///< drop what was computed with older weights
  kName,      ///< name the version in answers
  kResume,    ///< go on with the requests
  kRollback,  ///< take the last kLoad back
  kSample,    ///< is this what it holds, and is the next part of its memory so?
  kProve,     ///< is this what it holds, and is all of its memory so?
  kCheck,     ///< compare all of its memory with the version's digests; changes nothing
};
/// "probe", "prepare", ...: for messages.
std::string_view ToString(EngineCall call);

/// Which calls a kind of engine has; kLoad every kind has.
struct EngineTraits {
  bool prepares = false;    ///< kPrepare, kReload; else kLoad reads the directory
  bool asks = false;        ///< kAsk, kAttach, kClear; else kPrepare does what they do
  bool pauses = false;      ///< kPause, kResume
  bool flushes = false;     ///< kFlush; else kLoad does it, or whoever it calls
  bool names = false;       ///< kName; else kLoad does it
  bool rolls_back = false;  ///< kRollback
  bool proves = false;      ///< kProve; those that are asked: kSample after each kLoad, too
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
    kUnsure,       ///< asked, and no answer that could be understood: it may have been done
    kAsleep,       ///< not asked to do it: it has given its memory back for a while
  };
  Result result = Result::kDone;
  std::string why;           ///< if not kDone
  std::string version;       ///< of kProbe: the version that the engine names
  Identity held = {};        ///< what all ranks say that they hold; empty: not said, or not known
  std::string process = {};  ///< a name of the engine's process; empty: not said
  /// A refusal says that nothing but another process of the engine helps.
  bool only_anew = false;
  /// A refusal says that the engine's memory is no longer what was written to it. The next kPrepare
  /// makes an update ready that heals it.
  bool drifted = false;
  /// A refusal of kReload says that it would leave wrong weights; nothing was touched.
  bool corrupts = false;
  /// With kUnsure: the ranks' replies answer another call, so none of them is believed.
  bool out_of_step = false;
  /// With kUnreachable: nothing listens at the address, so the engine's process has ended.
  bool gone = false;
  /// After kProbe and kPause: the engine was already paused.
  bool paused = false;
  /// Of kAsleep: its weights are gone, and what is in their memory after it wakes is none.
  bool dropped = false;
  /// Of kUnsure: the call was not made, since the engine does not say whether it sleeps.
  bool unasked = false;

  bool done() const { return result == Result::kDone; }
};

/// How `id` is named in an engine's answers: its version number.
std::string VersionName(const Identity& id);

}  // namespace deltawire::receiver
