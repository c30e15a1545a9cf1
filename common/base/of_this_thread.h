// OfThisThread<T>(): one T for each thread, made when it first asks; ScratchMemory, what such a T
// is made of. Apart from sync.h, which is everywhere. In a simulated build a thread is a fiber, and
// has its own as well. Owner: the thread. Cost: as thread_local; memory is made once for the
// largest that was asked for.
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
  /// `bytes` of memory with whatever is in it, until the next call.
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
