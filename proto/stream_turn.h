// A state machine, without gRPC, for a server's stream of messages without a thread of its own. At
// most one thread looks for the next message, and at most one write is under way. News in the
// meantime triggers another look. The stream is finished once, when no thread looks or writes.
// Calls are made under the lock of the reactor that owns it.
#pragma once

#include <cstdint>
#include <utility>

#include "common/base/status.h"

namespace deltawire {

class StreamTurn {
 public:
  /// The caller's next action, without the lock.
  enum class Next : uint8_t {
    kNothing,
    kLook,    ///< looks for a message; then Found or FoundNothing
    kWrite,   ///< starts the write of the message, and calls Written at its end
    kFinish,  ///< finishes the stream with why()
    kCancel,  ///< cancels the write, which a peer that does not read would block for ever
  };

  /// There may be a message to send.
  Next News() {
    if (ended_) return Next::kNothing;
    again_ = step_ != Step::kIdle;
    if (again_) return Next::kNothing;
    step_ = Step::kLooking;
    return Next::kLook;
  }

  // The thread that got kLook calls these:

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
  /// The looking thread found that the stream is over.
  Next FoundEnd(Status why) {
    step_ = Step::kIdle;
    if (!ended_) why_ = std::move(why);
    ended_ = true;
    return Next::kFinish;
  }

  /// The write is over. `ok` says whether it reached the peer.
  Next Written(bool ok) {
    if (ended_) return Idle(Next::kFinish);
    again_ = false;
    if (!ok) return FoundEnd(absl::CancelledError("the peer has gone"));
    step_ = Step::kLooking;
    return Next::kLook;
  }

  Next End(Status why) {
    if (std::exchange(ended_, true)) return Next::kNothing;
    why_ = std::move(why);
    if (step_ == Step::kLooking) return Next::kNothing;  // the looking thread finishes it
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
  bool again_ = false;  // news arrived while step_ was not kIdle
  bool ended_ = false;
  Status why_;
};

}  // namespace deltawire
