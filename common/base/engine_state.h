// The state of a receiver's engine. Messages and the CLI carry it by the names that ToString
// defines.
#pragma once

#include <cstdint>
#include <string_view>

namespace deltawire {

/// An engine begins as kWaiting. An update takes it through kPreparing, which some kinds skip, and
/// kUpdating to kServing. After a failed attempt it is kRetrying until the next one. When the
/// receiver stops trying, it becomes kBehind, kPaused or kOut. A failed connection makes
/// it kUnreachable, from any state but kWaiting, in which there are no calls. From kUnreachable and
/// kAsleep it continues as from kWaiting. A new version ends kServing, kBehind and kPaused.
enum class EngineState : uint8_t {
  kWaiting,      ///< nothing is committed yet
  kUnreachable,  ///< no connection can be made to it
  kPreparing,    ///< it prepares an update, and still serves the old version
  kUpdating,     ///< from the pause to the resume
  kServing,      ///< it serves the committed version
  kRetrying,     ///< the last attempt failed; a retry follows
  kPaused,       ///< left paused after a failure, until the next version
  kBehind,       ///< this version failed for it; it serves an older one
  kOut,          ///< no more updates until it or the receiver restarts
  kAsleep,       ///< it has freed its memory for a while; updates wait until it wakes
};

std::string_view ToString(EngineState state);

}  // namespace deltawire
