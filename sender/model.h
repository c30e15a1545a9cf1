// One model on the trainer's node: two halves, the published state, the delta log, the offload.
// Owner: the Agent, by shared_ptr; pulls hold one too. Owns the model's directory (DirLock).
// Threads: every method from any thread. A publish runs on the model's own thread and the pool.
// Errors name the model and the version. Cost: two halves, the delta log, 16 bytes per chunk.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/delta/delta_log.h"
#include "common/layout/chunks.h"
#include "common/layout/coverage.h"
#include "common/layout/layout.h"
#include "common/layout/model_dir.h"
#include "common/shm/buffer_file.h"
#include "common/shm/dir_lock.h"
#include "common/shm/state_file.h"
#include "kernels/kernels.h"
#include "sender/encoded_cache.h"
#include "sender/gpu_diff.h"
#include "sender/publish_job.h"
#include "sender/version_info.h"

namespace deltawire::sender {

/// A published state, immutable. Everything that a pull plans from.
struct Published {
  VersionInfo info;
  uint64_t serial = 0;  ///< rises with every publish and rollback of this process
  uint32_t half = 0;
  std::shared_ptr<const std::vector<uint64_t>> digests;  ///< one per chunk
  LogView log;
  /// What this version changed, per tensor; null when nobody knows (after a restart).
  std::shared_ptr<const std::vector<TensorChange>> tensors;
  std::shared_ptr<EncodedCache> encoded;
  /// Not 0: the half's chunk was found not to have its digest, and must not be sent.
  std::unique_ptr<std::atomic<uint8_t>[]> damaged;
  /// XXH3 of each chunk's bytes, computed when first sent whole; 0 = not yet.
  std::unique_ptr<std::atomic<uint64_t>[]> full_xxh3;
};

/// The published state together with the promise that its half is not handed out to the trainer.
struct LeasedState {
  std::shared_ptr<const Published> state;
  std::shared_ptr<const void> lease;
};

/// Life of an offload; each phase goes to the next, or back to kIdle when abandoned:
///   kIdle -> kDraining -> kWriting -> kPublishing -> kIdle
enum class OffloadPhase : uint8_t { kIdle, kDraining, kWriting, kPublishing };

struct OffloadGrant {
  std::filesystem::path half_path;
  uint64_t data_offset = 0;
  double waited_seconds = 0;
  uint64_t lease = 0;
};

struct ReadyNotice {
  uint64_t version = 0;
  uint32_t rank = 0;
  uint32_t world = 1;
  uint64_t lease = 0;
  bool wrote_all = false;
  std::vector<uint32_t> written;
  std::vector<uint32_t> unchanged;
};

/// Sums over this process's publishes of one model.
struct PublishTotals {
  uint64_t published = 0;
  uint64_t delta_bytes = 0;
  double trainer_wait_seconds = 0;
  double publish_seconds = 0;
};

/// What comparing the published half with its digests has found so far.
struct ScrubTotals {
  uint64_t bytes = 0;
  uint64_t mismatches = 0;
  uint64_t repaired = 0;  ///< of those, rebuilt from the other half
};

struct ModelOptions {
  uint64_t delta_log_bytes = uint64_t{2} << 30;
  uint64_t scrub_bytes_per_s = 0;
  std::chrono::milliseconds grace{250};
  std::chrono::milliseconds offload_timeout{0};  ///< 0: none
  bool huge_pages = true;
  bool eager_diff = true;
  GpuUse gpu = GpuUse::kOff;
};

class Model {
 public:
  /// Makes `dir` and both halves for a new model.
  /// `owned`, of the layout's chunks: what this agent publishes; only that takes memory.
  static StatusOr<std::shared_ptr<Model>> Create(std::string name, std::filesystem::path dir,
                                                 Layout layout, Coverage owned,
                                                 std::vector<SideFile> side_files,
                                                 const ModelOptions& options, ThreadPool& pool);
  /// Takes up what an earlier process left in `dir`. kNotFound when it is no sender's directory.
  static StatusOr<std::shared_ptr<Model>> Recover(std::string name, std::filesystem::path dir,
                                                  const ModelOptions& options, ThreadPool& pool);
  ~Model();

  const std::string& name() const { return name_; }
  const Layout& layout() const { return layout_; }
  const ChunkTable& chunks() const { return chunks_; }
  /// Chunks beyond it are holes in both halves: never read, diffed, sent or counted.
  const Coverage& owned() const { return owned_; }
  uint64_t owned_bytes() const { return owned_bytes_; }
  uint64_t digest_seed() const { return key_.seed(); }
  const kernels::DigestKey& key() const { return key_; }
  const kernels::Backend& backend() const { return backend_; }
  uint64_t data_offset() const { return halves_[0].data_offset(); }
  const std::filesystem::path& directory() const { return dir_; }

  struct SideFiles {
    std::vector<SideFile> files;
    uint64_t hash = 0;
  };
  std::shared_ptr<const SideFiles> side_files() const;
  Status SetSideFiles(std::vector<SideFile> files);

  // Trainer.
  StatusOr<OffloadGrant> BeginOffload(uint64_t version, uint32_t rank, uint32_t world);
  /// kAborted unless that offload is under way and `rank` has begun it.
  Status CheckAttendance(uint64_t lease, uint32_t rank) const;
  /// Blocks until `rank` is ready (OK) or the offload is over (kAborted). When `gone` says so
  /// before, the offload is abandoned.
  Status Attend(uint64_t lease, uint32_t rank, const std::function<bool()>& gone);
  Status Abandon(uint64_t lease, uint32_t rank, const std::string& reason);
  /// `sole`: the rank alone writes them, so that they may be diffed though others still write.
  Status MarkWritten(uint64_t lease, const std::vector<uint32_t>& tensors, uint32_t rank,
                     bool sole);
  /// True when this was the last rank and the publish has begun.
  StatusOr<bool> NotifyReady(const ReadyNotice& notice);
  /// Waits in slices; gives up with kCancelled when `gone` says so, and with the reason when the
  /// offload of `lease` (0: the last of `version`) was abandoned.
  StatusOr<VersionInfo> WaitPublished(uint64_t version, uint64_t lease,
                                      const std::function<bool()>& gone);
  StatusOr<VersionInfo> Rollback(uint64_t version);

  // Pulls.
  std::shared_ptr<const Published> published() const;  ///< null: nothing yet
  /// Null state when nothing is published.
  LeasedState Lease();
  Bytes half(uint32_t i) const { return halves_[i].data(); }
  /// What was published as `id`, rebuilt from the delta log where it is not the newest: digests and
  /// the deltas that lead to it; its `half` is only to be read under a LeaseHalf. kAborted when it
  /// is not kept any more, or not published yet.
  StatusOr<std::shared_ptr<const Published>> At(StateId id);
  /// The promise that `half` keeps the bytes of `id`; null when it has others or is the trainer's.
  std::shared_ptr<const void> LeaseHalf(uint32_t half, StateId id);
  /// Called when the trainer has waited out the grace: close what still reads `half`.
  void SetCutter(std::function<void(uint32_t half)> cut) { cut_ = std::move(cut); }
  /// Called after each publish, without locks.
  void SetListener(std::function<void()> changed) { changed_ = std::move(changed); }

  uint64_t offloading_version() const;
  PublishTotals totals() const;
  ScrubTotals scrub() const;
  uint64_t damaged_chunks() const;  ///< of the published version
  uint64_t log_bytes() const;
  GpuDiff::Counts gpu_counts() const {
    return gpu_ == nullptr ? GpuDiff::Counts() : gpu_->counts();
  }
  uint64_t log_limit() const { return log_.limit(); }

  /// Wakes everything that waits; nothing is published any more.
  void Stop();

 private:
  struct Offload {
    uint64_t version = 0;
    uint64_t lease = 0;
    uint32_t world = 1;
    std::set<uint32_t> begun;
    std::set<uint32_t> ready;
    std::vector<uint8_t> marks;  // per tensor: kWritten | kUnchanged
    std::vector<uint32_t> sole;  // per tensor: 1 + the rank that alone writes it, or 0
    double waited = 0;
    std::chrono::steady_clock::time_point granted, deadline;
    std::shared_ptr<PublishJob> job;
  };

  Model(std::string name, std::filesystem::path dir, Layout layout, ChunkTable chunks,
        Coverage owned, DirLock lock, StateFile state, std::vector<BufferFile> halves,
        const ModelOptions& options, ThreadPool& pool);

  static StatusOr<std::shared_ptr<Model>> Adopt(std::string name, std::filesystem::path dir,
                                                DirLock lock, const ModelOptions& options,
                                                ThreadPool& pool);
  uint32_t InactiveHalf() const;
  std::shared_ptr<Published> MakeState(StateId id, uint32_t half) const;
  std::shared_ptr<Published> Rebuild(StateId id) const;  // REQUIRES: mu_ held
  std::shared_ptr<const void> LeaseLocked(uint32_t half);
  Status DrainInactive(std::unique_lock<std::mutex>& lock, double* waited);
  void StartJob();
  Status CheckComplete() const;
  Status Mark(const ReadyNotice& notice);
  void AbandonOffload(Status why);
  /// Why an offload that is no longer under way ended; kAborted in general words when that is long
  /// ago.
  Status WhyOver(uint64_t lease) const;
  std::string LateRanks() const;
  bool Writing(uint64_t lease) const {
    return phase_ == OffloadPhase::kWriting && offload_.lease == lease;
  }
  void PublisherLoop();
  void PublishOffload(std::unique_lock<std::mutex>& lock);
  void Publish(std::unique_lock<std::mutex>& lock, StateId to, bool rollback,
               double offload_seconds, int64_t ready_nanos, const std::vector<bool>& unchanged);
  void Install(StateId id, uint32_t half, VersionInfo info,
               std::shared_ptr<const std::vector<uint64_t>> digests,
               std::shared_ptr<const std::vector<TensorChange>> tensors,
               const std::vector<uint32_t>& damaged);
  /// Compares some chunks; returns the pause after which to go on. `lock` is dropped meanwhile.
  std::chrono::nanoseconds ScrubSome(std::unique_lock<std::mutex>& lock);
  void Damaged(uint32_t chunk, const LeasedState& leased);
  bool RebuildChunk(uint32_t chunk, const LeasedState& leased);
  /// An error when a chunk of the published half has lost its digest. REQUIRES: mu_ held.
  Status CheckUndamaged(uint64_t version) const;
  Status UndoInto(MutableBytes data, const LogView& log, size_t first,
                  std::vector<uint64_t>& digests) const;

  const std::string name_;
  const std::filesystem::path dir_;
  const Layout layout_;
  const ChunkTable chunks_;
  const Coverage owned_;
  const uint64_t owned_bytes_;
  const kernels::DigestKey key_;
  const kernels::Backend& backend_;
  const ModelOptions options_;
  ThreadPool& pool_;
  DirLock dir_lock_;
  StateFile state_;
  std::vector<BufferFile> halves_;
  std::unique_ptr<GpuDiff> gpu_;  // null: the CPU diffs; goes before the halves that it pins
  uint64_t elements_ = 0;
  std::function<void(uint32_t)> cut_;
  std::function<void()> changed_;

  mutable std::mutex mu_;
  std::condition_variable cv_;
  bool stopping_ = false;
  std::shared_ptr<const SideFiles> side_files_;
  std::shared_ptr<const Published> published_;
  std::map<StateId, std::weak_ptr<const Published>> earlier_;  // that pulls were pinned to
  DeltaLog log_;
  PublishTotals totals_;
  ScrubTotals scrub_;
  uint32_t scrub_next_ = 0;
  uint64_t next_serial_ = 1;
  uint64_t next_lease_ = 1;
  uint32_t readers_[2] = {0, 0};
  OffloadPhase phase_ = OffloadPhase::kIdle;
  Offload offload_;
  struct Failure {
    uint64_t version = 0, lease = 0;
    Status why;
  };
  std::deque<Failure> failures_;  // the newest at the back
  std::thread publisher_;
};

}  // namespace deltawire::sender
