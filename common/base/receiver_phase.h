// What a receiver is doing, as it reports it to senders and operators, and how a sync of it ends.
// A plain value. Messages and the CLI carry the phase by name; only ToString defines the names.
#pragma once

#include <cstdint>
#include <string_view>

namespace deltawire {

/// A replica begins as kStarting. From any phase it may go to kIdle, kPulling, kPaused, kFailed or
/// kWaitingForVersion.
/// Further transitions: kPulling -> kApplying -> kIdle; any -> kWaitingForReader -> the phase
/// before; kFailed -> kStarting once the replica has recovered; of a member of a group also
/// kPulling -> kApplying -> kPrepared -> kApplying.
enum class ReceiverPhase : uint8_t {
  kNone,     ///< nothing was reported yet
  kUnknown,  ///< reported by a receiver of another release, under a name unknown here
  kStarting,
  kIdle,
  kPulling,
  kApplying,
  kPaused,
  kFailed,
  kWaitingForVersion,  ///< no version is published by all agents: none yet, or of no common attempt
  kWaitingForReader,
  kPrepared,  ///< holds a state ready for its group's word
  // Only for a sync: asked for, then ended as kCommitted or kFailed.
  kAsked,
  kCommitted,
};

/// The phase's name in messages, e.g. "waiting for reader"; "" for kNone.
std::string_view ToString(ReceiverPhase phase);
/// The phase called `name`; kUnknown when no phase is.
ReceiverPhase ParseReceiverPhase(std::string_view name);

}  // namespace deltawire
