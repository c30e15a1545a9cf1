// What a receiver is at, as it says it to senders and operators, and how a sync ends for it.
// A value; threads: any. Messages and the CLI have its name, which ToString alone knows.
#pragma once

#include <cstdint>
#include <string_view>

namespace deltawire {

/// A replica begins as kStarting, and from any of its phases may go to kIdle, kPulling, kPaused or
/// kFailed. Besides: kPulling -> kApplying -> kIdle; any -> kWaitingForReader -> what it was
/// before; kFailed -> kStarting once it has recovered.
enum class ReceiverPhase : uint8_t {
  kNone,     ///< nothing was said yet
  kUnknown,  ///< said by a receiver of another release
  kStarting,
  kIdle,
  kPulling,
  kApplying,
  kPaused,
  kFailed,
  kWaitingForReader,
  // Of a sync only; it ends as kCommitted or kFailed.
  kAsked,
  kCommitted,
};

/// Its name in messages: "pulling", "waiting for reader"; of kNone "".
std::string_view ToString(ReceiverPhase phase);
/// The phase of that name; kUnknown when there is none.
ReceiverPhase ParseReceiverPhase(std::string_view name);

}  // namespace deltawire
