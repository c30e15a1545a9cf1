// Serialises the calls of a Buffer of which only one may run at a time. They do I/O, so a flag says
// that one runs, and no mutex is held meanwhile. Owner: the stack of such a call. Threads: any.
// Cost: two short locks.
#pragma once

#include "receiver/buffer.h"

namespace deltawire::receiver {

class Buffer::Turn {
 public:
  explicit Turn(Buffer& buffer) : buffer_(buffer) {
    std::unique_lock lock(buffer_.mu_);
    buffer_.cv_.wait(lock, [this] { return !buffer_.busy_; });
    buffer_.busy_ = true;
  }
  ~Turn() {
    std::lock_guard lock(buffer_.mu_);
    buffer_.busy_ = false;
    buffer_.cv_.notify_all();
  }

 private:
  Buffer& buffer_;
};

}  // namespace deltawire::receiver
