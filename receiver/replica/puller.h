// The pulls of one model: rounds to a target until one commits it, or prepares it for a group. A
// PullRunner owns it. The driving thread alone calls the methods up to ForgetBuffer; those after it
// may be called from any thread. After an error the next pull continues with the chunks that came.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/checked_mutex.h"
#include "common/base/identity.h"
#include "common/base/receiver_phase.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/delta/pull_stats.h"
#include "receiver/attach/follower.h"
#include "receiver/buffer/buffer_gate.h"
#include "receiver/pull/downstream_link.h"
#include "receiver/pull/pull_round.h"
#include "receiver/pull/replica_history.h"
#include "receiver/pull/running_pull.h"
#include "receiver/replica/agent_links.h"
#include "receiver/replica/buffer_home.h"
#include "receiver/replica/commit_log.h"
#include "receiver/replica/corrupt_chunks.h"
#include "receiver/replica/replica_options.h"
#include "receiver/replica/upkeep.h"

namespace deltawire::receiver {

/// Sums over the committed pulls of this process, unless a field says otherwise.
struct PullTotals {
  uint64_t commits = 0;
  uint64_t pull_failures = 0;    ///< pulls that failed, and are tried again
  uint32_t failures_in_row = 0;  ///< since a pull ended as it should
  uint64_t bytes_received = 0;
  uint64_t repaired_chunks = 0;
  uint64_t refused_chunks = 0;
  uint64_t root_mismatches = 0;  ///< pulls whose chunks did not make up the state that was named
  FormCounts forms;
  PullStats last_pull;
  size_t history_deltas = 0;  ///< in memory now
  uint64_t history_bytes = 0;
};

class Puller {
 public:
  /// The driving thread calls these methods without a lock; a round's threads call OnProgress.
  class Owner {
   public:
    virtual ~Owner() = default;
    /// Returns the bytes that a round to `target` is expected to bring, or kCancelled if it may not
    /// go on. Cancel and PullRound::Announce reach the round from now on.
    virtual StatusOr<uint64_t> MayPull(const Follower::Target& target) = 0;
    virtual void OnPhase(ReceiverPhase phase) = 0;
    virtual void OnProgress() = 0;
    /// A round has committed these results.
    virtual void OnCommit(const std::vector<PullRound::Result>& results) = 0;
  };
  /// The objects that pulls work with. They outlive the puller.
  struct Env {
    const ReplicaOptions& options;
    BufferHome& home;
    BufferGate& gate;
    CommitLog& commits;
    CorruptChunks& corrupt;
    DownstreamLink& downstream;
    AgentLinks& links;
    Upkeep& upkeep;
    ThreadPool& pool;
    CoderRates& rates;
  };
  Puller(const Env& env, Owner& owner, TransportFactory transport)
      : env_(env),
        owner_(owner),
        transport_(std::move(transport)),
        history_(env.options.history_bytes, env.options.served_delta_bytes),
        side_files_(env.links.size()),
        pull_(env.links.size()) {}

  struct Wish {
    bool force_full = false;  ///< every chunk comes whole, and the state may be an older one
    bool hold = false;        ///< prepare the target for a group, and commit nothing
  };
  /// Pulls `target`. After OK it is committed, or prepared if `wish` says to hold it. REQUIRES:
  /// nothing is prepared.
  Status Pull(const Follower::Target& target, const Wish& wish) ABSL_LOCKS_EXCLUDED(mu_);
  /// Commits what is prepared. It stays prepared if only a full file system has prevented the
  /// commit. REQUIRES: prepared().
  Status Commit() ABSL_LOCKS_EXCLUDED(mu_);
  /// Discards what is prepared. Its chunks stay in the buffer, and staged, as after a pull that
  /// failed.
  void DiscardPrepared();
  bool prepared() const { return prepared_.has_value(); }
  /// REQUIRES: prepared().
  Identity prepared_version() const { return prepared_->round->whole(); }
  /// The upstream's fault in the last round, or kCancelled. See Upstream::NotePullEnd.
  const Status& fault() const { return fault_; }

  /// The parts of the unwritten version of which chunks have come; empty: there is none.
  const std::vector<Identity>& unwritten_parts() const { return unwritten_.parts; }
  /// Discards the chunks of an unwritten version, unless `next` is that version.
  void DiscardUnwritten(const Identity& next = {});
  void TakeSideFiles(size_t agent, uint64_t hash, std::vector<SideFile> files) {
    side_files_.Put(agent, hash, std::move(files));
  }
  /// Forgets the history of the buffer's bytes: the buffer is gone.
  void ForgetBuffer();

  // The running pull.
  RunningPull running() const ABSL_LOCKS_EXCLUDED(mu_);
  /// The agents have published the version that is pulled unwritten.
  void MarkPublished() ABSL_LOCKS_EXCLUDED(mu_);
  void Cancel() ABSL_LOCKS_EXCLUDED(mu_);

  /// A pull or commit has ended, and not by a pause.
  void CountEnd(bool failed) ABSL_LOCKS_EXCLUDED(mu_);
  PullTotals totals() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Prepared {
    std::shared_ptr<PullRound> round;
    SteadyClock::time_point began;
  };
  Status RunRound(const Follower::Target& target, const Wish& wish) ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<PullRound> MakeRound(const Follower::Target& target, const Wish& wish)
      ABSL_LOCKS_EXCLUDED(mu_);
  /// Marks the corrupt chunks unknown in the buffer.
  Status WithdrawCorrupt() ABSL_LOCKS_EXCLUDED(mu_);
  /// Advances the round until it is done, or prepared if it is to hold.
  Status Drive(PullRound& round, bool hold) ABSL_LOCKS_EXCLUDED(mu_);
  void KeepPrepared(const std::shared_ptr<PullRound>& round, SteadyClock::time_point began)
      ABSL_LOCKS_EXCLUDED(mu_);
  Status EndRound(PullRound& round, SteadyClock::time_point began, Status ended)
      ABSL_LOCKS_EXCLUDED(mu_);
  void NoteCommit(const PullRound& round, SteadyClock::time_point began) ABSL_LOCKS_EXCLUDED(mu_);
  void OnProgress(size_t agent, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  /// Logs that `target` is of another lineage than what is held, once for each lineage.
  void LogNewLineage(const Identity& target);
  Buffer& buffer() const { return *env_.home.buffer(); }

  const Env env_;
  Owner& owner_;
  const TransportFactory transport_;
  ReplicaHistory history_;
  SideFileCache side_files_;
  Follower::Target unwritten_;  // chunks of it have come; no parts: there is none
  std::optional<Prepared> prepared_;
  Status fault_;
  Hash128 lineage_;            // of the last pull; zero: there was none
  int root_mismatches_ = 0;    // consecutive ones
  double waited_before_ = 0;   // seconds of waits for readers before the pull
  uint64_t committed_in_ = 0;  // BufferHome::number at the last commit

  mutable CheckedMutex mu_;
  RunningPull pull_ ABSL_GUARDED_BY(mu_);
  PullTotals totals_ ABSL_GUARDED_BY(mu_);
};

}  // namespace deltawire::receiver
