// The diff of one offload: inactive half against active half, chunk by chunk, on many threads. A
// chunk may be diffed while the trainer still writes others (MarkWritten); Finish diffs the rest. A
// chunk that the trainer's GPU has diffed (AddPayloads) is made from its payload instead. The Model
// and the pool's tasks share it; the halves outlive it. Any thread may call all but Finish, which
// one calls once. Inputs::lost and Result::damaged name damaged chunks.
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
#include "sender/agent/diff/gpu_diff.h"

namespace deltawire::sender {

class PublishJob : public std::enable_shared_from_this<PublishJob> {
 public:
  struct Inputs {
    const ChunkTable* chunks = nullptr;
    const Layout* layout = nullptr;  ///< for tensors' names in messages; null: numbers instead
    /// Null: all chunks; chunks of others are skipped and get digest 0.
    const Coverage* owned = nullptr;
    const kernels::Backend* backend = nullptr;
    const kernels::DigestKey* key = nullptr;
    Bytes active;           ///< empty: nothing was published, every chunk is new
    MutableBytes inactive;  ///< written only for unchanged tensors (carried over)
    std::shared_ptr<const std::vector<uint64_t>> active_digests;  ///< null when active is empty
    uint64_t active_root = 0;                                     ///< over active_digests
    uint64_t payload_limit = 0;
    /// The state in `active`; null when `active` is empty.
    std::shared_ptr<const Published> published;
    GpuDiff* gpu = nullptr;  ///< null: the CPU diffs everything
    /// Called for each chunk of `active` that no longer has its digest. `whole`: this version sends
    /// the chunk whole; otherwise the chunk was carried over, damaged. Called from any thread,
    /// under no lock.
    std::function<void(uint32_t chunk, bool whole)> lost;
    /// Called for each changed chunk, while `before`, its bytes in `active`, are sure to be right.
    /// `undoable`: the delta has the change's payload. Called from any thread, under no lock.
    std::function<void(uint32_t chunk, Bytes before, bool undoable)> changing;
    /// Called for each changed chunk when it has been diffed, once a chunk: on the GPU, when the
    /// CPU has agreed. `payload`: that of its delta, valid during the call; empty: the chunk is
    /// better sent whole. Called from any thread, under no lock.
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
    std::vector<uint32_t> damaged;  ///< chunks carried over although they lack their digest
    uint32_t payloads = 0;          ///< chunks that were made from the trainer's payloads
  };

  explicit PublishJob(Inputs inputs);

  /// The bytes of these tensors and chunks are final: diff them now, on at most half of `pool`,
  /// since the trainer is copying on the same cores.
  void MarkWritten(std::span<const uint32_t> tensors, std::span<const uint32_t> chunks,
                   ThreadPool& pool);

  /// The chunks hold payloads, which become their bytes once they are marked as written, or in
  /// Finish. A payload that does not lead to the digest that goes with it fails the publish. Does
  /// not block. REQUIRES: chunks that are neither marked nor given yet, whose bytes are final.
  void AddPayloads(std::span<const DiffedChunk> payloads);
  /// True once a payload was wrong although its base was right.
  bool payload_was_wrong() const { return payload_was_wrong_; }

  /// Diffs what is left; `unchanged[t]` tensors are copied from the active half instead. kAborted
  /// after GiveUp, and when a payload failed.
  StatusOr<Result> Finish(StateId from, StateId to, const std::vector<bool>& unchanged,
                          ThreadPool& pool);

  /// No further chunk is begun, in Finish either, whose result nobody wants any more.
  void GiveUp();
  /// No further chunk is begun. Does not wait for the chunks that are being diffed.
  void Cancel();
  /// Waits until no early thread is diffing a chunk; tasks still queued in the pool do not delay
  /// it.
  /// REQUIRES: Cancel, or Finish has returned.
  void Join();

 private:
  /// kFree -> kTaken, or kFree -> kFilling -> kPayload -> kTaken.
  enum class Turn : uint8_t { kFree, kTaken, kFilling, kPayload };
  /// Whether this call, of all threads', has moved the chunk from `from` to `to`.
  bool Take(uint32_t chunk, Turn from = Turn::kFree, Turn to = Turn::kTaken) {
    return turns_[chunk].compare_exchange_strong(from, to, std::memory_order_acq_rel);
  }
  /// Diffs the chunk, or applies its payload, unless another thread has taken it.
  void Diff(uint32_t chunk);
  /// Replaces the payload in the chunk's place by the chunk's bytes.
  void Apply(uint32_t chunk);
  /// Copies the chunk from the active half unless its bytes are there; false: that half lacks them.
  bool BringBase(uint32_t chunk, bool may_have_bytes);
  /// Ends the publish: no further chunk is begun.
  void Fail(uint32_t chunk, std::string_view why);
  void Tell(uint32_t chunk, const kernels::EncodeResult& found, Bytes payload) const;
  /// Diffs on the GPU the chunks that no thread has taken; after an error, those without a result
  /// are free to be taken again.
  void DiffOnGpu(const std::vector<bool>& unchanged, ThreadPool& pool);
  /// The GPU's result for a chunk.
  struct GpuResult {
    uint32_t chunk = 0;
    kernels::EncodeResult found;
    uint64_t payload_xxh3 = 0;       ///< of a result that is compared with the CPU's
    std::vector<std::byte> payload;  ///< empty beyond the limit of payloads
    bool whole = false;              ///< the old bytes are damaged on the host
  };
  /// Whether the CPU finds the same; says in `claim` whether the old bytes are damaged on the host.
  bool CpuAgrees(GpuResult& claim);
  void Accept(const GpuResult& result);
  /// Stores the result of a chunk's diff; `payload` may be left out, and the chunk is sent whole.
  void Record(uint32_t chunk, const kernels::EncodeResult& found, Bytes payload);
  void CarryOver(uint32_t chunk);
  /// Copies the chunk from the active half; returns the digest of the copy.
  uint64_t CopyOver(const Chunk& chunk);
  /// True when the inactive half may still have the chunk's bytes, since the last version did not
  /// change the chunk.
  bool MayHaveBytes(uint32_t chunk) const;
  void Lost(uint32_t chunk, bool whole);
  /// For a chunk whose old bytes cannot be trusted: takes its new digest, and has it sent whole.
  void DigestAnew(uint32_t chunk, uint64_t digest_before);
  /// Stores a chunk's digest and updates the root.
  void SetDigest(uint32_t chunk, uint64_t digest);
  void Count(const Chunk& chunk, uint64_t changed, uint64_t delta_bytes, bool full);
  bool ActiveDamaged(uint32_t chunk) const;
  void DiffMarked();

  const Inputs in_;
  const uint32_t n_;
  DeltaBuilder builder_;
  std::unique_ptr<std::atomic<Turn>[]> turns_;
  std::vector<DiffedChunk> given_;  // by chunk, of those that are kPayload; empty without a base
  std::atomic<uint32_t> applied_{0};
  std::atomic<bool> payload_was_wrong_{false};
  std::shared_ptr<std::vector<uint64_t>> digests_;
  struct Counts {
    std::atomic<uint64_t> changed{0}, delta_bytes{0}, full_bytes{0};
  };
  std::unique_ptr<Counts[]> counts_;  // per tensor
  std::atomic<uint64_t> root_;        // starts as the active half's root; SetDigest updates it
  std::atomic<bool> given_up_{false};
  bool cancelled_ = false;
  CheckedMutex mu_;
  CondVar cv_;
  // Ranges of chunks [first, last), in the order marked.
  std::deque<std::pair<uint32_t, uint32_t>> marked_ ABSL_GUARDED_BY(mu_);
  size_t early_threads_ ABSL_GUARDED_BY(mu_) = 0;  // tasks given to the pool that have not ended
  size_t running_ ABSL_GUARDED_BY(mu_) = 0;        // early threads that are diffing a chunk
  std::vector<uint32_t> damaged_ ABSL_GUARDED_BY(mu_);
  Status failure_ ABSL_GUARDED_BY(mu_);  // the first
};

}  // namespace deltawire::sender
