// Decides what is done next at a server's stream of messages that has no thread of its own. At most
// one thread looks for the next message, and at most one write is under way; news that comes
// meanwhile makes somebody look again; the stream is finished once, when nobody looks or writes. A
// state machine without gRPC. Owner: the stream's reactor. Threads: calls are made under the
// reactor's lock. Errors: none.
#pragma once

#include <cstdint>
#include <utility>

#include "common/base/status.h"

namespace deltawire {

class StreamTurn {
 public:
  /// What the caller does next, without the lock.
  enum class Next : uint8_t {
    kNothing,
    kLook,    ///< looks for a message; then Found or FoundNothing
    kWrite,   ///< has the message written; Written comes when that is over
    kFinish,  ///< finishes the stream with why()
    kCancel,  ///< cancels the write, which a peer that reads nothing would hold up for ever
  };

  /// There may be something to send.
  Next News() {
    if (ended_) return Next::kNothing;
    again_ = step_ != Step::kIdle;
    if (again_) return Next::kNothing;
    step_ = Step::kLooking;
    return Next::kLook;
  }

  // Called by the thread that was told to look:

  Next Found() {
    if (ended_) return Idle(Next::kFinish);
    step_ = Step::kWriting;
    return Next::kWrite;
  }
  Next FoundNothing() {
    if (ended_) return Idle(Next::kFinish);
    if (std::exchange(again_, false)) return Next::kLook;
    return Idle(Next::kNothing);
  }
  /// The thread found that the stream is over.
  Next FoundEnd(Status why) {
    step_ = Step::kIdle;
    if (!ended_) why_ = std::move(why);
    ended_ = true;
    return Next::kFinish;
  }

  /// The write is over, and did or did not reach the peer.
  Next Written(bool ok) {
    if (ended_) return Idle(Next::kFinish);
    again_ = false;
    if (!ok) return FoundEnd(absl::CancelledError("the peer has gone"));
    step_ = Step::kLooking;
    return Next::kLook;
  }

  /// The stream is to end, unless it has already.
  Next End(Status why) {
    if (std::exchange(ended_, true)) return Next::kNothing;
    why_ = std::move(why);
    if (step_ == Step::kLooking) return Next::kNothing;  // whoever looks finishes it
    return step_ == Step::kIdle ? Next::kFinish : Next::kCancel;
  }

  bool ended() const { return ended_; }
  const Status& why() const { return why_; }

 private:
  enum class Step : uint8_t { kIdle, kLooking, kWriting };
  Next Idle(Next next) {
    step_ = Step::kIdle;
    return next;
  }

  Step step_ = Step::kIdle;
  bool again_ = false;  // news came while step_ was not kIdle
  bool ended_ = false;
  Status why_;
};

}  // namespace deltawire
