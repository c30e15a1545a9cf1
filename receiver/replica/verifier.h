// A check of all chunks of a buffer for the callers that wait for it. It comes in slices, so that a
// pull waits for one slice at most. A Replica owns it; its driving thread alone uses it.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "common/base/sync.h"
#include "common/base/thread_pool.h"
#include "receiver/buffer/check.h"
#include "receiver/replica/buffer_home.h"
#include "receiver/replica/corrupt_chunks.h"
#include "receiver/replica/request_queue.h"

namespace deltawire::receiver {

class Verifier {
 public:
  Verifier(std::string model, RequestQueue& requests, CorruptChunks& corrupt, ThreadPool& pool)
      : model_(std::move(model)), requests_(requests), corrupt_(corrupt), pool_(pool) {}

  /// Checks some chunks. All callers that wait when a pass begins share it; it starts over if
  /// another buffer has replaced the one that it began with. The last slice answers them, or has
  /// the next pull repair the corrupt chunks for them.
  void CheckSlice(const BufferHome& home);

 private:
  struct Pass {
    uint64_t buffer_number = 0;  // BufferHome::number
    SteadyClock::time_point began = SteadyClock::now();
    uint32_t next = 0;
    std::set<uint32_t> corrupt = {};
  };
  /// Returns false after the last slice.
  bool CheckSome(const Buffer& buffer);
  VerifyResult Result(const Buffer& buffer) const;

  const std::string model_;
  RequestQueue& requests_;
  CorruptChunks& corrupt_;
  ThreadPool& pool_;
  std::optional<Pass> pass_;
};

}  // namespace deltawire::receiver
