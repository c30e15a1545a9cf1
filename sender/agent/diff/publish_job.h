// The diff of one offload: inactive half against active half, chunk by chunk, on many threads. A
// chunk may be diffed while the trainer still writes others (MarkWritten); Finish diffs the rest. A
// chunk that the trainer's GPU has diffed (AddPayloads) is made from its payload instead.
// Thread-safe, apart from Finish, which is called once. The halves outlive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/checked_mutex.h"
#include "common/base/sync.h"
#include "common/base/thread_pool.h"
#include "common/delta/delta.h"
#include "common/layout/chunks.h"
#include "common/layout/coverage.h"
#include "common/layout/diffed_chunk.h"
#include "common/serving/version_store.h"
#include "kernels/kernels.h"
#include "sender/agent/diff/diff_base.h"
#include "sender/agent/diff/given_payloads.h"
#include "sender/agent/diff/gpu_diff.h"

namespace deltawire::sender {

class PublishJob : public std::enable_shared_from_this<PublishJob> {
 public:
  struct Inputs : DiffHalves {
    const Layout* layout = nullptr;  ///< for tensors' names in messages; null: numbers
    /// Null: all chunks. Chunks of other agents are skipped and get digest 0.
    const Coverage* owned = nullptr;
    uint64_t active_root = 0;  ///< over active_digests
    uint64_t payload_limit = 0;
    GpuDiff* gpu = nullptr;  ///< null: the CPU diffs everything
    // The functions below are called from any thread, without a lock.
    /// Called for each changed chunk after `before`, its bytes in `active`, were checked.
    /// `undoable`: the delta has the change's payload.
    std::function<void(uint32_t chunk, Bytes before, bool undoable)> changing;
    /// Called once for each changed chunk after its diff, or, on the GPU, after the CPU's check.
    /// `payload`: of its delta, valid during the call; empty: the chunk is better sent whole.
    std::function<void(uint32_t chunk, uint64_t digest_before, uint64_t digest_after,
                       Bytes payload)>
        diffed;
  };

  struct Result {
    std::shared_ptr<const Delta> delta;  ///< null for the first version
    std::shared_ptr<std::vector<uint64_t>> digests;
    uint64_t root = 0;  ///< of the digests (common/layout/root.h)
    uint64_t changed_elements = 0;
    uint64_t full_bytes = 0;
    uint64_t delta_bytes = 0;  ///< of payloads that are smaller than their chunks
    std::shared_ptr<const std::vector<TensorChange>> tensors;
    std::vector<uint32_t> damaged;  ///< corrupt chunks that were carried over
    uint32_t payloads = 0;          ///< chunks that were made from the trainer's payloads
  };

  explicit PublishJob(Inputs inputs);

  /// Diffs these tensors and chunks, whose bytes are final, on at most half of `pool`, since the
  /// trainer copies on the same cores.
  void MarkWritten(std::span<const uint32_t> tensors, std::span<const uint32_t> chunks,
                   ThreadPool& pool);

  /// Adds places that hold payloads. Bytes replace the payloads once the chunks are marked as
  /// written, or in Finish. A payload that does not lead to its digest fails the publish. Does not
  /// block. REQUIRES: the bytes are final, the places disjoint, and their chunks not marked yet.
  void AddPayloads(std::span<const DiffedChunk> payloads);
  /// Whether a payload was wrong although its base was right.
  bool payload_was_wrong() const { return payloads_.was_wrong(); }

  /// Diffs the remaining chunks, and copies those of `unchanged` tensors from the active half.
  /// kAborted after Abort, and when a payload failed.
  StatusOr<Result> Finish(StateId from, StateId to, const std::vector<bool>& unchanged,
                          ThreadPool& pool);

  /// Starts no further chunk, and has Finish fail.
  void Abort();
  /// Starts no further early chunk. Does not wait for those that are being diffed.
  void Cancel();
  /// Waits until no early thread is diffing a chunk. REQUIRES: Cancel, or Finish has returned.
  void Join();

 private:
  /// kFree -> kTaken, or kFree -> kFilling -> kPayload -> kTaken.
  enum class Turn : uint8_t { kFree, kTaken, kFilling, kPayload };
  /// Moves the chunk from `from` to `to`. Returns false if another thread was first.
  bool Take(uint32_t chunk, Turn from = Turn::kFree, Turn to = Turn::kTaken) {
    return turns_[chunk].compare_exchange_strong(from, to, std::memory_order_acq_rel);
  }
  /// Diffs the chunk, or applies its payload, unless another thread has taken it.
  void Diff(uint32_t chunk);
  /// Returns "chunk 3 of tensor w".
  std::string Describe(uint32_t chunk) const;
  /// Aborts the publish, since the chunk's payload cannot be applied.
  void Fail(uint32_t chunk, std::string_view why);
  /// Diffs on the GPU the chunks that no thread has taken. After an error, those without a result
  /// are free again.
  void DiffOnGpu(const std::vector<bool>& unchanged, ThreadPool& pool);
  /// The GPU's result for a chunk.
  struct GpuResult {
    uint32_t chunk = 0;
    kernels::EncodeResult found;
    uint64_t payload_xxh3 = 0;       ///< of a result to compare with the CPU's
    std::vector<std::byte> payload;  ///< empty beyond the limit of payloads
    bool whole = false;              ///< the old bytes are corrupt on the host
  };
  /// Returns whether the CPU finds the same. Sets `claim.whole`.
  bool CpuAgrees(GpuResult& claim);
  /// Stores the result of a chunk's diff. With an empty `payload` the chunk is sent whole.
  void Record(uint32_t chunk, const kernels::EncodeResult& found, Bytes payload);
  void CarryOver(uint32_t chunk);
  /// Digests a chunk whose old bytes are corrupt, and has it sent whole.
  void DigestAnew(uint32_t chunk);
  /// Stores a chunk's digest and updates the root.
  void SetDigest(uint32_t chunk, uint64_t digest);
  void Count(const Chunk& chunk, uint64_t changed, uint64_t delta_bytes, bool full);
  void DiffMarked();

  const Inputs in_;
  const uint32_t n_;
  DiffBase base_;
  GivenPayloads payloads_;
  DeltaBuilder builder_;
  std::unique_ptr<std::atomic<Turn>[]> turns_;
  std::shared_ptr<std::vector<uint64_t>> digests_;
  struct Counts {
    std::atomic<uint64_t> changed{0}, delta_bytes{0}, full_bytes{0};
  };
  std::unique_ptr<Counts[]> counts_;  // per tensor
  std::atomic<uint64_t> root_;        // the active half's root, with the changes of SetDigest
  std::atomic<bool> aborted_{false};
  bool cancelled_ = false;
  CheckedMutex mu_;
  CondVar cv_;
  // Ranges of chunks [first, last), in the order marked.
  std::deque<std::pair<uint32_t, uint32_t>> marked_ ABSL_GUARDED_BY(mu_);
  size_t early_threads_ ABSL_GUARDED_BY(mu_) = 0;  // tasks in the pool that have not ended
  size_t running_ ABSL_GUARDED_BY(mu_) = 0;        // early threads that are diffing a chunk
  std::vector<uint32_t> damaged_ ABSL_GUARDED_BY(mu_);
  Status failure_ ABSL_GUARDED_BY(mu_);  // the first
};

}  // namespace deltawire::sender
