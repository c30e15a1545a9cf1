// What a receiver's engine is doing. A plain value. Messages and the CLI carry the state by name;
// only ToString defines the names.
#pragma once

#include <cstdint>
#include <string_view>

namespace deltawire {

/// An engine begins as kWaiting. An update takes it through kPreparing, which some kinds skip, and
/// kUpdating to kServing. After a failed attempt it is kRetrying until the next attempt. When the
/// receiver gives the version up, it is kBehind, kPaused or kOut. A call that finds no connection
/// makes it kUnreachable, from any state but kWaiting, in which there are no calls; it goes on from
/// there as from kWaiting, and so it does from kAsleep. A new version ends kServing, kBehind and
/// kPaused.
enum class EngineState : uint8_t {
  kWaiting,      ///< nothing is committed yet
  kUnreachable,  ///< it cannot be connected to
  kPreparing,    ///< it makes an update ready, and serves what it served
  kUpdating,     ///< from the pause to the resume
  kServing,      ///< it serves what is committed
  kRetrying,     ///< the last attempt failed, another one comes
  kPaused,       ///< left paused after a failure, until the next version
  kBehind,       ///< this version was given up; it serves an older one
  kOut,          ///< taken out: left alone until it or the receiver starts anew
  kAsleep,       ///< it has given its memory back for a while; updates wait until it wakes
};

/// "waiting", "unreachable", ...
std::string_view ToString(EngineState state);

}  // namespace deltawire
