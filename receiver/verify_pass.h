// One comparison of all chunks of a buffer with their digests, in slices, so that a pull waits for
// one slice at most. A Replica owns it; its driving thread alone uses it.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "common/base/identity.h"
#include "common/base/sync.h"
#include "common/base/thread_pool.h"
#include "receiver/buffer.h"

namespace deltawire::receiver {

struct VerifyResult {
  Identity committed;
  uint64_t chunks = 0;
  uint64_t bytes = 0;
  double seconds = 0;
  uint64_t bad_chunks = 0;
  std::vector<std::string> bad_tensors;
  bool repaired = false;
};

class VerifyPass {
 public:
  /// `buffer_number`: which of the buffers of this process is checked.
  explicit VerifyPass(uint64_t buffer_number) : buffer_number_(buffer_number) {}

  /// Checks some chunks; false: that was the last slice. Starts over if a buffer of another number
  /// has replaced the one that the pass began with.
  bool Slice(const Buffer& buffer, uint64_t buffer_number, ThreadPool& pool);
  VerifyResult Result(const Buffer& buffer) const;
  /// Chunks without their digest.
  const std::set<uint32_t>& corrupt() const { return corrupt_; }

 private:
  const SteadyClock::time_point began_ = SteadyClock::now();
  uint64_t buffer_number_;
  uint32_t next_ = 0;
  std::set<uint32_t> corrupt_;
};

}  // namespace deltawire::receiver
