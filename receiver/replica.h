// One model on an inference node: keeps its Buffer in step with the sender, or with the agents that
// each have a part of it. Follower says what to do, RequestQueue who waits, PullRound pulls; a
// thread drives them, and a second one keeps the attachments (so that a pull that is long, or
// stuck, is no silence). Owner: the Daemon. Threads: public methods from any. Errors: kept in
// status() until the next success; what was verified of a broken pull is not fetched again.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/receiver_phase.h"
#include "common/base/sync.h"
#include "common/base/thread_pool.h"
#include "common/delta/coder_rates.h"
#include "common/delta/pull_stats.h"
#include "receiver/buffer.h"
#include "receiver/delta_files.h"
#include "receiver/follower.h"
#include "receiver/history.h"
#include "receiver/pull_round.h"
#include "receiver/pull_sink.h"
#include "receiver/request_queue.h"
#include "receiver/upstream.h"

namespace deltawire::receiver {

struct ReplicaOptions {
  std::string model;
  std::filesystem::path directory;
  uint32_t streams = 4;
  bool follow = true;
  uint64_t staging_bytes = uint64_t{128} << 20;
  uint64_t history_bytes = 0;
  uint64_t delta_file_bytes = 0;  ///< of committed deltas kept for engines; 0: none
  uint64_t scrub_bytes_per_s = 0;
  std::chrono::milliseconds stream_timeout{30000};
  bool huge_pages = true;
  uint32_t buffers = 0;  ///< files of the weights, 1 or 2; 0: as memory allows
  bool unsafe_in_place = false;
  /// With one file: a reader is waited for so long, and then, or never, given the old file for
  /// good.
  std::chrono::milliseconds reader_grace{10000};
  bool copy_for_reader = false;
  uint64_t seed = 0;       ///< of the jitter in pauses
  std::string file_group;  ///< may read the files; empty: only their owner
};

/// One agent of the trainer, as the replica sees it.
struct AgentView {
  std::string address;
  Identity newest;
  Coverage owned;
  uint64_t owned_bytes = 0;
  bool attached = false;
};

struct ReplicaStatus {
  bool attached = false;  ///< to every agent
  bool following = false;
  Identity committed;
  Identity newest;  ///< that all agents have published; epoch 0 while they agree on none
  ReceiverPhase phase = ReceiverPhase::kNone;
  std::string message;  ///< of the last failure
  uint64_t model_bytes = 0;
  uint64_t bytes_done = 0;
  uint64_t bytes_total = 0;
  uint64_t commits = 0;
  uint64_t bytes_received = 0;
  uint64_t repaired_chunks = 0;
  uint64_t refused_chunks = 0;
  uint64_t root_mismatches = 0;   ///< pulls whose chunks were not the state that was named
  uint64_t lost_attachments = 0;  ///< ended for silence or a gap in the events
  uint64_t scrubbed_bytes = 0;
  uint64_t scrub_mismatches = 0;
  uint64_t files_put_back = 0;  ///< weights and side files that somebody removed or changed
  uint32_t buffers = 0;
  std::string buffers_why;
  std::string readers;  ///< that are waited for now
  double reader_wait_seconds = 0, worst_reader_wait_seconds = 0;
  size_t history_deltas = 0;
  uint64_t history_bytes = 0;
  FormCounts forms;  ///< of all committed pulls
  PullStats last_pull;
  std::string fingerprint;
  std::vector<AgentView> agents;
};

struct Commit {
  Identity id;
  PullStats stats;
  int64_t unix_nanos = 0;
  uint64_t serial = 0;  ///< rises by one with each commit of this process
};

struct VerifyResult {
  Identity committed;
  uint64_t chunks = 0;
  uint64_t bytes = 0;
  double seconds = 0;
  uint64_t bad_chunks = 0;
  std::vector<std::string> bad_tensors;
  bool repaired = false;
};

class Replica {
 public:
  /// Takes the directory's lock and takes up what it holds: kAlreadyExists names another owner.
  /// `upstreams`: the sender, or every agent of a trainer that has several. `transport` makes what
  /// carries a pull's bytes.
  static StatusOr<std::unique_ptr<Replica>> Start(const ReplicaOptions& options,
                                                  std::vector<std::unique_ptr<Upstream>> upstreams,
                                                  TransportFactory transport, ThreadPool& pool,
                                                  CoderRates& rates);
  ~Replica();

  const ReplicaOptions& options() const { return options_; }
  ReplicaStatus status() const;

  /// Brings the buffer to the newest version; `progress` is called now and then. Waits at most
  /// for one pull that runs already and one of its own.
  StatusOr<Commit> Sync(bool force_full, const std::function<void(const ReplicaStatus&)>& progress,
                        const std::function<bool()>& gone);
  /// kCancelled when the caller has gone. A pull waits for one slice of it at most.
  StatusOr<VerifyResult> Verify(bool repair, const std::function<bool()>& gone);
  /// Pausing returns when nothing is being changed: a pull that follows is ended, or finished once
  /// it has begun to change the buffer. kCancelled when the caller has gone; it is paused then,
  /// too.
  Status SetPaused(bool paused, const std::function<bool()>& gone);
  /// Blocks until a commit with a serial above `seen` (an earlier process's commit has serial 1).
  std::optional<Commit> WaitCommit(uint64_t seen, const std::function<bool()>& gone);

  void Stop();

 private:
  struct Agent {
    std::unique_ptr<Upstream> upstream;
    // The driving thread's.
    RoundAgent round;
    // Under mu_.
    AgentView view;
    Hash128 described;         // the lineage that the description was of; zero: not known
    uint64_t delta_bytes = 0;  // of its newest
    uint64_t attachment = 0;   // counts them, so that a late end is not the next one's
  };

  Replica(const ReplicaOptions& options, std::vector<std::unique_ptr<Upstream>> upstreams,
          TransportFactory transport, ThreadPool& pool, CoderRates& rates,
          std::shared_ptr<DirLock> lock, std::unique_ptr<Buffer> buffer);

  // The driving thread (replica.cc), which alone uses what is not under mu_.
  void Run();
  /// What there is to do now, done without mu_; false: nothing, until the time in `again`.
  bool DoNext(std::unique_lock<Mutex>& lock, SteadyClock::time_point* again);
  void Describe(std::unique_lock<Mutex>& lock);
  StatusOr<std::vector<ModelDescription>> DescribeAll();
  Status PrepareBuffer(std::vector<ModelDescription> descriptions);
  Status MakeBuffer(ModelDescription& description);
  // Pulls (replica_pull.cc).
  void Pull(std::unique_lock<Mutex>& lock, Follower::Target target);
  StatusOr<Follower::Target> AskNewest();
  /// What is held, as each agent names it.
  void HoldParts(const Follower::Target& target);
  Status RunRound(const Follower::Target& target, bool force_full);
  void Committed(const PullRound& round);
  Status MarkSuspects();
  Status Touch();
  Status WaitWritable();
  void OnProgress(size_t agent, uint64_t bytes);
  // Memory and files against what they should be (replica_check.cc).
  bool DoUpkeep(std::unique_lock<Mutex>& lock, SteadyClock::time_point now,
                SteadyClock::time_point* again);
  void CheckFiles(std::unique_lock<Mutex>& lock);
  void CatchUp(std::unique_lock<Mutex>& lock);
  /// Compares some chunks with their digests; returns the pause after which to go on.
  std::chrono::nanoseconds ScrubSome();
  void VerifySlice(uint32_t first, uint32_t last, std::set<uint32_t>* bad);
  // The thread that keeps the attachments (replica_attach.cc).
  void KeepAttached();
  void Attend(size_t agent, Follower::Need need, std::unique_lock<Mutex>& lock);
  void OnEvent(size_t agent, uint64_t attachment, const UpstreamEvent& event);
  void OnEnded(size_t agent, uint64_t attachment, const Status& why);

  void SetPhase(ReceiverPhase phase);
  void SendAll();
  void Answer(std::unique_lock<Mutex>& lock, const RequestQueue::Batch& batch,
              const Status& status);
  // REQUIRES: mu_ held.
  Report MakeReport(size_t agent) const;
  void SetMessage(const Status& failed);
  /// What failed last is over.
  void Recovered();
  /// The next pull looks at these chunks, and fetches them whole where they are bad.
  void Doubt(const std::vector<uint32_t>& chunks);
  Follower::Situation Situation() const;
  std::string WhyBuffers() const;

  const ReplicaOptions options_;
  std::vector<Agent> agents_;  // their number is fixed
  const TransportFactory transport_;
  ThreadPool& pool_;
  CoderRates& rates_;
  const std::shared_ptr<DirLock> lock_;

  // The driving thread's; Verify reads the buffer where `verifying_` says so.
  std::unique_ptr<Buffer> buffer_;
  std::unique_ptr<PullSink> sink_;  // of buffer_
  History history_;
  SideFileCache side_files_;
  DeltaFiles delta_files_;
  uint32_t scrub_next_ = 0;
  int root_mismatches_ = 0;  // in a row
  std::mt19937_64 random_;
  Backoff describe_backoff_;
  bool behind_ = false;  // the hidden file, of two
  std::atomic<bool> reader_in_the_way_{false};
  SteadyClock::time_point describe_at_{}, scrub_at_{}, check_at_{}, catch_up_at_{};

  mutable Mutex mu_;
  /// Anything below has changed.
  mutable CondVar cv_;
  /// The same, for the thread that keeps the attachments.
  CondVar attend_cv_;
  bool stopping_ = false;
  bool paused_ = false;
  bool describe_ = true;  // anew, before the next pull
  Follower follower_;
  RequestQueue requests_;
  ReplicaStatus status_;
  std::optional<Commit> last_commit_;
  std::shared_ptr<PullRound> round_;  // that runs now
  bool round_requested_ = false;      // somebody waits for it
  bool catching_up_ = false;          // the hidden file is being changed
  bool connection_failed_ = false;    // what status_ says failed; over with the next attachment
  bool check_failed_ = false;         // of the files; over with the next one that does not
  uint64_t buffers_made_ = 0;
  bool pulling_ = false;              // the buffer is a pull's, or being replaced, or soon will
  uint32_t verifying_ = 0;            // slices that read the buffer now
  std::vector<uint64_t> part_bytes_;  // of the pull, by agent
  std::set<uint32_t> suspects_;  // chunks that lost their digest: the next pull fetches them whole
  SteadyClock::time_point reported_{};
  Thread thread_;
  Thread keeper_;
};

}  // namespace deltawire::receiver
