// The phase of a receiver, as it reports it to senders and operators, and the end of a sync.
// Messages and the CLI carry it by the names that ToString defines.
#pragma once

#include <cstdint>
#include <string_view>

namespace deltawire {

/// A replica begins as kStarting. From any phase it may go to kIdle, kPulling, kPaused, kFailed or
/// kWaitingForVersion. Further transitions: kPulling -> kApplying -> kIdle; any ->
/// kWaitingForReader -> the phase before; kFailed -> kStarting once the replica has recovered. A
/// member of a group also goes kPulling -> kApplying -> kPrepared -> kApplying.
enum class ReceiverPhase : uint8_t {
  kNone,     ///< nothing has been reported yet
  kUnknown,  ///< another release's phase, with a name unknown here
  kStarting,
  kIdle,
  kPulling,
  kApplying,
  kPaused,
  kFailed,
  kWaitingForVersion,  ///< no version is published by all agents, or none of one common attempt
  kWaitingForReader,
  kPrepared,  ///< has prepared a state and waits for its group's decision
  // A sync alone: it is asked for, then ends as kCommitted or kFailed.
  kAsked,
  kCommitted,
};

/// Returns the phase's name in messages, e.g. "waiting for reader"; "" for kNone.
std::string_view ToString(ReceiverPhase phase);
/// Returns the phase called `name`, or kUnknown.
ReceiverPhase ParseReceiverPhase(std::string_view name);

}  // namespace deltawire
