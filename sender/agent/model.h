// One model on the trainer's node: a StateSource for pulls, the offload that ranks write, and the
// publish that follows it, on the model's own thread and the pool. Every method may be called from
// any thread. It costs two halves, the delta log and 16 bytes per chunk. The Agent and pulls share
// it. Errors name the model and the version.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/checked_mutex.h"
#include "common/base/listeners.h"
#include "common/base/stages.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/base/thread_pool.h"
#include "common/config/options.h"
#include "common/layout/chunks.h"
#include "common/layout/coverage.h"
#include "common/layout/layout.h"
#include "common/serving/incoming_version.h"
#include "common/serving/state_source.h"
#include "kernels/kernels.h"
#include "sender/agent/gpu_diff.h"
#include "sender/agent/gpu_slot.h"
#include "sender/agent/halves.h"
#include "sender/agent/incoming_slot.h"
#include "sender/agent/model_home.h"
#include "sender/agent/offload_session.h"
#include "sender/agent/publish_job.h"
#include "sender/agent/scrubber.h"
#include "sender/agent/side_file_store.h"
#include "sender/agent/version_history.h"

namespace deltawire::sender {

struct OffloadGrant {
  std::filesystem::path half_path;
  uint64_t data_offset = 0;
  double waited_seconds = 0;
  uint64_t lease = 0;
  uint64_t attempt = 0;
  Identity published;           ///< while ranks write, no other version is published
  bool takes_payloads = false;  ///< of changes of `published`
};

/// Sums over this process's publishes of one model.
struct PublishTotals {
  uint64_t published = 0;
  uint64_t abandoned = 0;  ///< offloads that were not published
  uint64_t delta_bytes = 0;
  double trainer_wait_seconds = 0;
  double publish_seconds = 0;
};

class Model : public StateSource {
 public:
  /// Returns true once the caller has gone.
  using Gone = std::function<bool()>;

  /// Makes `dir` and both halves for a new model, and draws its lineage. `owned`: the chunks of the
  /// layout that this agent publishes; only these take memory.
  static StatusOr<std::shared_ptr<Model>> Create(std::string name, std::filesystem::path dir,
                                                 Layout layout, Coverage owned,
                                                 std::vector<SideFile> side_files,
                                                 const SenderOptions& options, ThreadPool& pool,
                                                 StageObserver stages = {});
  /// Opens the model that an earlier process left in `dir`. kNotFound when `dir` is not a sender's
  /// directory.
  static StatusOr<std::shared_ptr<Model>> Recover(std::string name, std::filesystem::path dir,
                                                  const SenderOptions& options, ThreadPool& pool,
                                                  StageObserver stages = {});
  ~Model() override;

  const std::string& name() const override { return home_->name(); }
  const Layout& layout() const override { return home_->layout(); }
  const ChunkTable& chunks() const override { return home_->chunks(); }
  /// The chunks that this agent publishes. All others are holes in both halves: never read, diffed,
  /// sent or counted.
  const Coverage& owned() const override { return home_->owned(); }
  uint64_t owned_bytes() const override { return home_->owned_bytes(); }
  ThreadPool& pool() override { return pool_; }
  void CountPull(int change) override { pulls_ += change; }
  std::shared_ptr<const void> Pin(const std::shared_ptr<const Published>& state) override {
    return store_.Pin(state);
  }
  const kernels::DigestKey& key() const override { return home_->key(); }
  const kernels::Backend& backend() const override { return backend_; }
  uint64_t data_offset() const { return home_->halves().data_offset(); }
  const std::filesystem::path& directory() const { return home_->directory(); }
  /// The highest version ever published in this lineage. Above the published version, it was
  /// rolled back from.
  uint64_t highest_version() const { return home_->halves().highest_version(); }
  /// The history in which this model's versions count.
  const Hash128& lineage() const { return home_->halves().lineage(); }

  std::shared_ptr<const SideFileSet> side_files() const override;
  std::shared_ptr<const SideFileSet> side_files(uint64_t hash) const override;
  /// The side files of the next version.
  std::shared_ptr<const SideFileSet> next_side_files() const { return home_->side_files().next(); }
  /// Sets the side files of the next version.
  Status SetSideFiles(std::vector<SideFile> files);

  // Trainer.
  StatusOr<OffloadGrant> BeginOffload(const OffloadRequest& request, const Gone& gone);
  /// `news` is called, without a lock, when an offload gets on or is over; see Listeners.
  [[nodiscard]] Listeners::Listener OnOffload(std::function<void()> news) {
    return offload_listeners_.Add(std::move(news));
  }
  /// The rank's AttendOffload call begins, and lasts until EndAttend. kAborted unless that offload
  /// is under way and `rank` has begun it.
  Status Attend(uint64_t lease, uint32_t rank);
  /// True: `rank` is ready, or the version published. kAborted: the offload is over.
  StatusOr<bool> Attended(uint64_t lease, uint32_t rank) const;
  /// If the rank has not been ready, it has gone, and the offload is abandoned. REQUIRES: Attend
  /// returned OK.
  void EndAttend(uint64_t lease, uint32_t rank);
  /// A trainer's client shows that it lives, until ClientGone; see OffloadSession.
  void ClientCame(uint64_t client);
  void ClientGone(uint64_t client);
  /// A caller waits for the publish, until EndWait. While there are any, the offload is held.
  void BeginWait(uint64_t lease);
  void EndWait(uint64_t lease);
  /// The result of WaitPublished, or nullopt while the caller must wait.
  std::optional<StatusOr<VersionInfo>> Outcome(uint64_t version, uint64_t lease,
                                               uint64_t attempt) const;

  /// Blocks until `rank` is ready (OK) or the offload is over (kAborted). When `gone` returns true
  /// before, the offload is abandoned. REQUIRES: Attend returned OK. For callers with a thread of
  /// their own, as is WaitPublished.
  Status AwaitReady(uint64_t lease, uint32_t rank, const Gone& gone);
  Status Abandon(uint64_t lease, uint32_t rank, const std::string& reason);
  Status MarkWritten(uint64_t lease, const WrittenNotice& notice);
  /// True when this was the last rank and the publish has begun.
  StatusOr<bool> NotifyReady(const ReadyNotice& notice);
  /// Waits for the offload of `lease`, or with 0 for `version` or a newer one. kCancelled when
  /// `gone` says so; the reason when that offload (0: the last of `version`) was abandoned. A lease
  /// of an earlier process is known by its `attempt`, if that is what is published.
  StatusOr<VersionInfo> WaitPublished(uint64_t version, uint64_t lease, const Gone& gone,
                                      uint64_t attempt = 0);
  StatusOr<VersionInfo> Rollback(uint64_t version);

  // Pulls.
  std::shared_ptr<const Published> published() const override { return store_.newest(); }
  LeasedState Lease() override;
  Bytes half(uint32_t i) const override { return std::as_const(home_->halves()).data(i); }
  StatusOr<std::shared_ptr<const Published>> At(const Identity& id) override {
    return store_.At(id);
  }
  std::shared_ptr<const void> LeaseHalf(uint32_t half, const Identity& id) override {
    return home_->halves().Lease(half, id);
  }
  void Recheck(uint32_t chunk) override;
  /// Sets the function that ends the pulls that still read `half`, for a trainer that has waited
  /// out the grace.
  void SetCutter(std::function<void(uint32_t half)> cut) { cut_ = std::move(cut); }
  /// Sets a callback after each publish. The model holds no locks then.
  void SetListener(std::function<void()> changed) { changed_ = std::move(changed); }
  /// Sets the callbacks of the incoming version: `wanted` says whether a receiver is attached that
  /// may take its chunks, and `coming` hears of each change of incoming(). Both are called from any
  /// thread, without a lock.
  void SetEarlyListener(std::function<bool()> wanted, std::function<void()> coming) {
    incoming_.SetListener(std::move(wanted), std::move(coming));
  }
  /// The incoming version, once one of its chunks has been diffed; else null.
  std::shared_ptr<IncomingVersion> incoming() const;

  uint64_t offloading_version() const;
  PublishTotals totals() const;
  VersionHistory& history() { return history_; }
  const VersionHistory& history() const { return history_; }
  ScrubTotals scrub() const { return scrubber_.totals(); }
  uint64_t damaged_chunks() const;  ///< of the published version
  uint64_t log_bytes() const { return store_.log_bytes(); }
  uint64_t held_bytes() const { return store_.held_bytes(); }
  uint64_t log_limit() const override { return store_.log_limit(); }
  EncodedCache::Counts encoded() const { return store_.encoded(); }
  /// The same of incoming versions.
  EncodedCache::Counts early_encoded() const { return incoming_.encoded(); }
  GpuDiff::Counts gpu_counts() const { return gpu_.counts(); }
  /// What its versions are diffed on, if the trainer does it or a GPU was asked for; else empty.
  std::string diffs_on() const;

  /// Whether its files are still in its directory; see ModelHome.
  bool IsInPlace() const { return home_->IsInPlace(); }

  /// Wakes everything that waits, with `why`. A publish that is running finishes, and no other
  /// begins. The first reason stays.
  void Stop(const Status& why);
  /// Stop, for a model that is about to be unregistered: no offload begins any more.
  /// kFailedPrecondition, and no change, while an offload is under way.
  Status Retire(const Status& why);
  /// Stop, for a model that another one replaces. A publish that is running is abandoned too, since
  /// no pull could ever take its version.
  void Drop(const Status& why);

 private:
  Model(std::unique_ptr<const ModelHome> home, const SenderOptions& options, uint64_t first_lease,
        ThreadPool& pool, StageObserver stages);

  /// Publishes the version that an earlier process had published, and keeps the version before it
  /// if its half is whole.
  Status Restore();
  StatusOr<std::shared_ptr<Published>> RestoreHalf(uint32_t half);
  uint32_t InactiveHalf() const;
  std::unique_ptr<GpuDiff> MakeGpu(std::string* where) const;

  /// Drains and fences the half, for which it waits and may make files.
  Status PrepareHalf(uint32_t half, double* waited) ABSL_LOCKS_EXCLUDED(mu_);
  /// `incoming`: gets each chunk that has been diffed; null: no chunk travels early.
  std::shared_ptr<PublishJob> MakeJob(uint32_t half,
                                      const std::shared_ptr<IncomingVersion>& incoming)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Makes the session's offload the incoming version, or returns null if none of its chunks shall
  /// travel early.
  std::shared_ptr<IncomingVersion> BeginIncoming() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  StatusOr<bool> NoteReady(const ReadyNotice& notice);
  StatusOr<bool> AttendedNow(uint64_t lease, uint32_t rank) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<StatusOr<VersionInfo>> OutcomeNow(uint64_t version, uint64_t lease,
                                                  uint64_t attempt) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  StatusOr<OffloadGrant> Grant(const OffloadRequest& request, uint64_t lease, const Gone& gone)
      ABSL_LOCKS_EXCLUDED(mu_);
  /// Called when the session may have ended the offload: cancels its early diffs and wakes waiters.
  void TidyAfterSession() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PublisherLoop();
  struct ToPublish {
    uint32_t half = 0;
    StateId to;
    uint64_t attempt = 0;
    bool rollback = false;
    double offload_seconds = 0;
    double waited_seconds = 0;
    std::vector<bool> unchanged;
    std::shared_ptr<const SideFileSet> side_files;
    std::shared_ptr<PublishJob> job;
  };
  ToPublish NextPublish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// The state under which `version` will be published. Only at an agent that owns a part may the
  /// published number come again in the same epoch; elsewhere that, as a rollback, begins the next.
  StateId NextState(uint64_t version) const;
  StatusOr<VersionInfo> Publish(const ToPublish& what);
  /// Writes the log line of a publish, and tells of its stages.
  void Tell(const VersionInfo& info) const ABSL_LOCKS_EXCLUDED(mu_);
  /// Fills the half with the bytes of `target`.
  Status Undo(uint32_t half, const Published& newest, const Identity& target);
  /// An error when a chunk of the published half has lost its digest.
  Status CheckUndamaged(const Published& newest, uint64_t version) const;
  /// Compares some chunks; returns the pause before the next call.
  std::chrono::nanoseconds ScrubSome() ABSL_LOCKS_EXCLUDED(mu_);

  const std::unique_ptr<const ModelHome> home_;
  const SenderOptions options_;
  const StageObserver stages_;
  const kernels::Backend& backend_;
  ThreadPool& pool_;
  std::atomic<int> pulls_{0};
  VersionStore store_;
  Scrubber scrubber_;
  VersionHistory history_;
  IncomingSlot incoming_;
  GpuSlot gpu_;  // destroyed before the halves, whose memory it has pinned
  std::atomic<bool> payloads_trusted_{true};  // none of the trainer's was wrong
  std::function<void(uint32_t)> cut_;
  std::function<void()> changed_;

  // Locks: mu_, then those of the members above and of the job.
  mutable CheckedMutex mu_;
  CondVar cv_;
  Listeners offload_listeners_;          // not under mu_
  Status stopped_ ABSL_GUARDED_BY(mu_);  // why it has stopped; OK: it has not
  OffloadSession session_ ABSL_GUARDED_BY(mu_);
  // Publishes the session's offload, or has published one that ended.
  std::shared_ptr<PublishJob> job_ ABSL_GUARDED_BY(mu_);
  uint64_t job_lease_ ABSL_GUARDED_BY(mu_) = 0;
  std::string trainer_diffs_on_ ABSL_GUARDED_BY(mu_);  // of the last offload; as ReadyNotice's
  PublishTotals totals_ ABSL_GUARDED_BY(mu_);
  Thread publisher_;
};

}  // namespace deltawire::sender
