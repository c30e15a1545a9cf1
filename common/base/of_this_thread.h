// A T for each thread, made at the thread's first OfThisThread<T>() call, and ScratchMemory for
// such a T to hold, which grows to the largest size asked for. In a simulated build each fiber
// counts as a thread. Not part of sync.h, because nearly every file includes that.
// sync.h, because nearly every file includes that.
#pragma once

#include <memory>

#include "common/base/bytes.h"

#ifdef DELTAWIRE_SIMULATION
#include "simulated_thread_local.h"
#else

namespace deltawire {

template <typename T>
T& OfThisThread() {
  thread_local T value;
  return value;
}

}  // namespace deltawire

#endif

namespace deltawire {

class ScratchMemory {
 public:
  /// Returns `bytes` of uninitialized memory, valid until the next call.
  MutableBytes Sized(size_t bytes) {
    if (size_ < bytes) {
      memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
      size_ = bytes;
    }
    return {memory_.get(), bytes};
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
  size_t size_ = 0;
};

}  // namespace deltawire
