// The diff of one offload: inactive half against active half, chunk by chunk, on many threads.
// Chunks may be diffed early, while the trainer still writes others (MarkWritten); Finish does the
// rest. Owner: the Model, by shared_ptr (tasks in the pool hold one); the halves outlive it.
// Threads: MarkWritten and Cancel from any; Finish once. Cost: one read of both halves.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/thread_pool.h"
#include "common/delta/delta.h"
#include "common/layout/chunks.h"
#include "common/layout/coverage.h"
#include "kernels/kernels.h"
#include "sender/gpu_diff.h"
#include "sender/version_info.h"

namespace deltawire::sender {

struct Published;

class PublishJob : public std::enable_shared_from_this<PublishJob> {
 public:
  struct Inputs {
    const ChunkTable* chunks = nullptr;
    const Coverage* owned = nullptr;  ///< null: all; other chunks are left alone, with digest 0
    const kernels::Backend* backend = nullptr;
    const kernels::DigestKey* key = nullptr;
    Bytes active;           ///< empty: nothing was published, all is new
    MutableBytes inactive;  ///< written only for unchanged tensors (carried over)
    std::shared_ptr<const std::vector<uint64_t>> active_digests;  ///< null when active is empty
    uint64_t payload_limit = 0;
    std::shared_ptr<const Published> published;  ///< that `active` is; null when empty
    GpuDiff* gpu = nullptr;                      ///< null: the CPU diffs everything
  };

  struct Result {
    std::shared_ptr<const Delta> delta;  ///< null for the first version
    std::shared_ptr<std::vector<uint64_t>> digests;
    uint64_t changed_elements = 0;
    uint64_t full_bytes = 0;
    std::shared_ptr<const std::vector<TensorChange>> tensors;
    std::vector<uint32_t> damaged;  ///< chunks carried over without having their digest
  };

  explicit PublishJob(Inputs inputs);

  /// The bytes of these tensors are final: diff them now, on at most half of `pool`, since the
  /// trainer is copying on the same cores.
  void MarkWritten(std::span<const uint32_t> tensors, ThreadPool& pool);

  /// Diffs what is left; `unchanged[t]` tensors are copied from the active half instead.
  Result Finish(StateId from, StateId to, const std::vector<bool>& unchanged, ThreadPool& pool);

  /// No further chunk is touched; returns when no thread is in one.
  void Cancel();

 private:
  /// Takes the chunk if nobody has; true when this call did it.
  bool Diff(uint32_t chunk);
  /// Diffs on the GPU what nobody has taken; after an error the rest is as if never taken.
  void DiffOnGpu(const std::vector<bool>& unchanged);
  /// Takes in what a chunk's diff found.
  void Record(uint32_t chunk, const kernels::EncodeResult& found, Bytes payload);
  void CarryOver(uint32_t chunk);
  /// A chunk whose old bytes cannot be trusted: digest anew, whole on the way.
  void DigestAnew(uint32_t chunk, uint64_t digest_before);
  void Count(const Chunk& chunk, uint64_t changed, uint64_t delta_bytes, bool full);
  bool ActiveDamaged(uint32_t chunk) const;
  void DiffMarked();

  const Inputs in_;
  const uint32_t n_;
  DeltaBuilder builder_;
  std::unique_ptr<std::atomic<uint8_t>[]> taken_;
  std::shared_ptr<std::vector<uint64_t>> digests_;
  struct Counts {
    std::atomic<uint64_t> changed{0}, delta_bytes{0}, full_bytes{0};
  };
  std::unique_ptr<Counts[]> counts_;  // per tensor
  bool cancelled_ = false;
  std::mutex mu_;
  std::condition_variable cv_;
  std::deque<std::pair<uint32_t, uint32_t>> marked_;  // ranges of chunks, in the order marked
  size_t early_threads_ = 0;
};

}  // namespace deltawire::sender
