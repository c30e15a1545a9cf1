// The diff of one offload: inactive half against active half, chunk by chunk, on many threads.
// Chunks may be diffed early, while the trainer still writes others (MarkWritten); Finish does the
// rest. Owner: the Model, by shared_ptr (tasks in the pool hold one); the halves outlive it.
// Threads: MarkWritten and Cancel from any; Finish once. Cost: one read of both halves.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/sync.h"
#include "common/base/thread_pool.h"
#include "common/delta/delta.h"
#include "common/layout/chunks.h"
#include "common/layout/coverage.h"
#include "kernels/kernels.h"
#include "sender/agent/gpu_diff.h"
#include "sender/agent/version_store.h"

namespace deltawire::sender {

class PublishJob : public std::enable_shared_from_this<PublishJob> {
 public:
  struct Inputs {
    const ChunkTable* chunks = nullptr;
    const Layout* layout = nullptr;   ///< for tensors' names in messages; null: numbers
    const Coverage* owned = nullptr;  ///< null: all; other chunks are left alone, with digest 0
    const kernels::Backend* backend = nullptr;
    const kernels::DigestKey* key = nullptr;
    Bytes active;           ///< empty: nothing was published, all is new
    MutableBytes inactive;  ///< written only for unchanged tensors (carried over)
    std::shared_ptr<const std::vector<uint64_t>> active_digests;  ///< null when active is empty
    uint64_t active_root = 0;                                     ///< over active_digests
    uint64_t payload_limit = 0;
    std::shared_ptr<const Published> published;  ///< that `active` is; null when empty
    GpuDiff* gpu = nullptr;                      ///< null: the CPU diffs everything
    /// Told of each chunk of `active` that no longer has its digest; `whole`: this version brings
    /// it whole (else it was carried over, damaged). From any thread, under no lock.
    std::function<void(uint32_t chunk, bool whole)> lost;
  };

  struct Result {
    std::shared_ptr<const Delta> delta;  ///< null for the first version
    std::shared_ptr<std::vector<uint64_t>> digests;
    uint64_t root = 0;  ///< of them (common/layout/root.h)
    uint64_t changed_elements = 0;
    uint64_t full_bytes = 0;
    uint64_t delta_bytes = 0;  ///< of payloads that are worth sending
    std::shared_ptr<const std::vector<TensorChange>> tensors;
    std::vector<uint32_t> damaged;  ///< chunks carried over without having their digest
  };

  explicit PublishJob(Inputs inputs);

  /// The bytes of these tensors and chunks are final: diff them now, on at most half of `pool`,
  /// since the trainer is copying on the same cores.
  void MarkWritten(std::span<const uint32_t> tensors, std::span<const uint32_t> chunks,
                   ThreadPool& pool);

  /// Diffs what is left; `unchanged[t]` tensors are copied from the active half instead.
  Result Finish(StateId from, StateId to, const std::vector<bool>& unchanged, ThreadPool& pool);

  /// No further chunk is begun. Does not wait.
  void Cancel();
  /// Waits until no thread is in a chunk, however busy the pool is with other work.
  /// REQUIRES: Cancel, or Finish has returned.
  void Join();

 private:
  /// Takes the chunk if nobody has; true when this call did it.
  bool Diff(uint32_t chunk);
  /// Diffs on the GPU what nobody has taken; after an error the rest is as if never taken.
  void DiffOnGpu(const std::vector<bool>& unchanged, ThreadPool& pool);
  /// What the GPU said of a chunk, to be compared with what the CPU finds.
  struct GpuClaim {
    uint32_t chunk = 0;
    kernels::EncodeResult result;
    uint64_t payload_xxh3 = 0;
  };
  bool CpuAgrees(const GpuClaim& claim);
  /// Forgets all that was found, by whomever: no chunk is taken any more.
  void StartOver();
  /// Takes in what a chunk's diff found.
  void Record(uint32_t chunk, const kernels::EncodeResult& found, Bytes payload);
  void CarryOver(uint32_t chunk);
  /// Copies the chunk from the active half; the digest of what then stands there.
  uint64_t CopyOver(const Chunk& chunk);
  /// True when the other half may have the chunk's bytes since the version before.
  bool MayHaveBytes(uint32_t chunk) const;
  void Lost(uint32_t chunk, bool whole);
  /// A chunk whose old bytes cannot be trusted: digest anew, whole on the way.
  void DigestAnew(uint32_t chunk, uint64_t digest_before);
  /// A chunk's digest, and the root with it.
  void SetDigest(uint32_t chunk, uint64_t digest);
  void Count(const Chunk& chunk, uint64_t changed, uint64_t delta_bytes, bool full);
  bool ActiveDamaged(uint32_t chunk) const;
  void DiffMarked();

  const Inputs in_;
  const uint32_t n_;
  std::optional<DeltaBuilder> builder_;
  std::unique_ptr<std::atomic<uint8_t>[]> taken_;
  std::shared_ptr<std::vector<uint64_t>> digests_;
  struct Counts {
    std::atomic<uint64_t> changed{0}, delta_bytes{0}, full_bytes{0};
  };
  std::unique_ptr<Counts[]> counts_;  // per tensor
  std::atomic<uint64_t> root_;        // of the active half, and of chunks as they are taken in
  bool cancelled_ = false;
  Mutex mu_;
  CondVar cv_;
  std::deque<std::pair<uint32_t, uint32_t>> marked_;  // ranges of chunks, in the order marked
  size_t early_threads_ = 0;                          // asked of the pool and not ended
  size_t running_ = 0;                                // of them, those that are in a chunk
  std::vector<uint32_t> damaged_;
};

}  // namespace deltawire::sender
