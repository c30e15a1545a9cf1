// One model on an inference node: keeps its Buffer in step with the sender, or with the agents that
// each have a part of it. One thread drives it: connect -> describe -> (allocate) -> attach ->
//   { wait for a version or a request -> pull -> verify -> apply -> commit }; an error: back to the
// start after up to 2 s. Owner: the Daemon. Threads: public methods from any. Errors: kept in
// status() until the next success; what was verified of a broken pull is not fetched again.
#pragma once

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/base/thread_pool.h"
#include "common/delta/coder_rates.h"
#include "common/net/pull_client.h"
#include "receiver/buffer.h"
#include "receiver/history.h"
#include "receiver/pull_sink.h"
#include "receiver/pull_stats.h"
#include "receiver/upstream.h"

namespace deltawire::receiver {

struct ReplicaOptions {
  std::string model;
  std::filesystem::path directory;
  uint32_t streams = 4;
  bool follow = true;
  uint64_t staging_bytes = uint64_t{128} << 20;
  uint64_t history_bytes = 0;
  uint64_t scrub_bytes_per_s = 0;
  std::chrono::milliseconds stream_timeout{30000};
  bool huge_pages = true;
};

/// One agent of the trainer, as the replica sees it.
struct AgentView {
  std::string address;
  StateId newest;
  Coverage owned;
  uint64_t owned_bytes = 0;
  bool attached = false;
};

struct ReplicaStatus {
  bool attached = false;  ///< to every agent
  bool following = false;
  StateId committed;
  StateId newest;       ///< that all agents have published; epoch 0 while they agree on none
  std::string phase;    ///< "starting", "idle", "pulling", "applying", "paused", "failed"
  std::string message;  ///< of the last failure
  uint64_t model_bytes = 0;
  uint64_t bytes_done = 0;
  uint64_t bytes_total = 0;
  uint64_t commits = 0;
  uint64_t bytes_received = 0;
  uint64_t repaired_chunks = 0;
  uint64_t refused_chunks = 0;
  uint64_t scrubbed_bytes = 0;
  uint64_t scrub_mismatches = 0;
  size_t history_deltas = 0;
  uint64_t history_bytes = 0;
  FormCounts forms;  ///< of all committed pulls
  PullStats last_pull;
  std::string fingerprint;
  std::vector<AgentView> agents;
};

struct Commit {
  StateId id;
  PullStats stats;
  int64_t unix_nanos = 0;
  uint64_t serial = 0;  ///< rises by one with each commit of this process
};

struct VerifyResult {
  StateId committed;
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
  /// `upstreams`: the sender, or every agent of a trainer that has several.
  static StatusOr<std::unique_ptr<Replica>> Start(const ReplicaOptions& options,
                                                  std::vector<std::unique_ptr<Upstream>> upstreams,
                                                  net::IoThreads& io, ThreadPool& pool,
                                                  CoderRates& rates);
  ~Replica();

  const ReplicaOptions& options() const { return options_; }
  ReplicaStatus status() const;

  /// Brings the buffer to the newest version; `progress` is called now and then. Waits at most
  /// for one pull that runs already and one of its own.
  StatusOr<Commit> Sync(bool force_full, const std::function<void(const ReplicaStatus&)>& progress,
                        const std::function<bool()>& gone);
  StatusOr<VerifyResult> Verify(bool repair, const std::function<bool()>& gone);
  void SetPaused(bool paused);
  /// Blocks until a commit with a serial above `seen` (an earlier process's commit has serial 1).
  std::optional<Commit> WaitCommit(uint64_t seen, const std::function<bool()>& gone);

  void Stop();

 private:
  struct Agent {
    std::unique_ptr<Upstream> upstream;
    // The replica's own thread's.
    uint64_t owned_hash = 0;
    std::vector<SideFile> side_files;
    uint64_t side_files_hash = 0;
    // Under mu_.
    AgentView view;
    uint64_t delta_bytes = 0;  // of its newest
  };
  /// One agent's share of a pull, and where it lands.
  struct PartPull {
    size_t agent = 0;
    std::unique_ptr<PullSink> sink;
    std::unique_ptr<net::PullClient> client;
    StatusOr<StateId> end = absl::UnknownError("not run");
  };
  struct Request {
    size_t agent = 0;
    uint64_t number = 0;
  };

  Replica(const ReplicaOptions& options, std::vector<std::unique_ptr<Upstream>> upstreams,
          net::IoThreads& io, ThreadPool& pool, CoderRates& rates, std::shared_ptr<DirLock> lock,
          std::unique_ptr<Buffer> buffer);

  void Run();
  Status Session();
  StatusOr<std::vector<ModelDescription>> DescribeAll();
  Status PrepareBuffer(std::vector<ModelDescription> descriptions);
  Status WriteSideFiles();
  Status AttachAll();
  Status Follow();
  Status Pull(bool force_full);
  StatusOr<StateId> ChooseTarget(bool force_full);
  StatusOr<std::vector<uint32_t>> PullOnce(bool force_full, const std::vector<uint32_t>& repair,
                                           PullStats& stats, StateId& id);
  std::vector<size_t> AgentsToAsk(const std::vector<uint32_t>& repair) const;
  StatusOr<std::vector<PullGrant>> OpenPulls(const std::vector<size_t>& agents, StateId at);
  std::vector<PartPull> MakeParts(const std::vector<size_t>& agents,
                                  const std::vector<PullGrant>& grants);
  Status RunParts(std::vector<PartPull>& parts, const wire::Have& have);
  /// After a failure: what came whole is not fetched again, if it can be helped.
  Status KeepFinished(std::vector<PartPull> parts, StateId target, bool force_full, Status why);
  Status MarkSuspects();
  void Committed(StateId id, const PullStats& stats);
  wire::Have MakeHave(bool force_full) const;
  PullWish MakeWish(const Agent& agent, StateId at) const;
  /// Compares some chunks with their digests; returns the pause after which to go on.
  std::chrono::nanoseconds ScrubSome();
  void SetPhase(std::string phase);
  void OnEvent(size_t agent, const UpstreamEvent& event);
  void OnProgress(size_t agent, uint64_t bytes);
  void SendAll(const Report& report);
  Report MakeReport(std::string phase, uint64_t sync_request) const;  // REQUIRES: mu_ held
  bool PullWanted() const;                                            // REQUIRES: mu_ held
  StateId CommonNewest() const;                                       // REQUIRES: mu_ held
  std::string NewestOfEach() const;                                   // REQUIRES: mu_ held

  const ReplicaOptions options_;
  std::vector<Agent> agents_;  // their number is fixed
  net::IoThreads& io_;
  ThreadPool& pool_;
  CoderRates& rates_;
  const std::shared_ptr<DirLock> lock_;

  /// Held for as long as the buffer's bytes are read or changed as a whole: a pull, a verify.
  std::mutex buffer_mu_;
  std::unique_ptr<Buffer> buffer_;
  History history_;
  uint32_t scrub_next_ = 0;
  /// Parts of `kept_target_` that are in, staged, while other agents' are not. The buffer is whole.
  std::vector<PartPull> kept_;
  StateId kept_target_;

  mutable std::mutex mu_;
  mutable std::condition_variable cv_;
  bool stopping_ = false;
  bool paused_ = false;
  bool attachment_ended_ = false;
  ReplicaStatus status_;
  std::optional<Commit> last_commit_;
  std::vector<net::PullClient*> clients_;  // that run now
  std::vector<uint64_t> part_bytes_;       // of the pull, by agent
  // Requests are numbered; the one that a pull began with is answered when it ends.
  uint64_t sync_wanted_ = 0, sync_done_ = 0;
  bool force_full_ = false;
  Status sync_status_;
  std::vector<Request> remote_requests_;
  std::set<uint32_t> suspects_;  // chunks that lost their digest: the next pull fetches them whole
  std::atomic<int64_t> last_progress_report_{0};
  std::thread thread_;
};

}  // namespace deltawire::receiver
