// One model on an inference node: keeps its Buffer in step with the sender, or with agents that
// each own a part. Follower decides what to do, RequestQueue knows who waits, Puller pulls, on one
// thread; AttachmentKeeper has another, so that no pull silences it. The Daemon owns it. Public
// methods may be called from any thread. Errors are shown in status() until the next success;
// verified chunks of a broken pull are not fetched again.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/bell.h"
#include "common/base/identity.h"
#include "common/base/receiver_phase.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/base/thread_pool.h"
#include "common/delta/coder_rates.h"
#include "common/layout/coverage.h"
#include "receiver/attach/follower.h"
#include "receiver/attach/upstream.h"
#include "receiver/buffer/buffer.h"
#include "receiver/buffer/buffer_gate.h"
#include "receiver/pull/downstream_link.h"
#include "receiver/replica/agent_attachments.h"
#include "receiver/replica/agent_links.h"
#include "receiver/replica/buffer_home.h"
#include "receiver/replica/buffer_setup.h"
#include "receiver/replica/commit_log.h"
#include "receiver/replica/corrupt_chunks.h"
#include "receiver/replica/next_step.h"
#include "receiver/replica/planner.h"
#include "receiver/replica/pull_runner.h"
#include "receiver/replica/puller.h"
#include "receiver/replica/replica_line.h"
#include "receiver/replica/replica_options.h"
#include "receiver/replica/request_queue.h"
#include "receiver/replica/run_state.h"
#include "receiver/replica/upkeep.h"
#include "receiver/replica/verifier.h"

namespace deltawire::receiver {

/// One agent of the trainer, as the replica sees it.
struct AgentView {
  std::string address;
  Identity newest;
  Coverage owned;
  uint64_t owned_bytes = 0;
  bool attached = false;
  std::string in_use;  ///< of several addresses the one that is used now
};

struct ReplicaStatus : PullTotals, UpkeepTotals {
  bool attached = false;  ///< attached to every agent
  bool following = false;
  Identity committed;
  Identity newest;  ///< newest state that all agents have published; epoch 0: none
  ReceiverPhase phase = ReceiverPhase::kNone;
  std::string message;  ///< the last failure, or what is waited for
  uint64_t model_bytes = 0;
  uint64_t bytes_done = 0;
  uint64_t bytes_total = 0;
  uint64_t lost_attachments = 0;  ///< attachments ended because of silence or lost events
  uint64_t scrub_mismatches = 0;  ///< chunks that had lost their digest
  uint32_t buffers = 0;
  std::string buffers_why;
  std::string readers;  ///< processes that hold up an update now
  double reader_wait_seconds = 0, worst_reader_wait_seconds = 0;
  std::string fingerprint;
  std::vector<AgentView> agents;
  std::string group;  ///< that it is a member of; empty: of none
  Identity prepared;  ///< held ready for the group's word; epoch 0: nothing
};

class Replica {
 public:
  /// Locks the directory, takes up the buffer that it holds, and starts both threads.
  /// kAlreadyExists names another owner of the directory. `upstreams` are the sender, or every
  /// agent of a trainer with several; `transport` makes the transport of each pull.
  static StatusOr<std::unique_ptr<Replica>> Start(const ReplicaOptions& options,
                                                  std::vector<std::unique_ptr<Upstream>> upstreams,
                                                  TransportFactory transport, ThreadPool& pool,
                                                  CoderRates& rates);
  ~Replica();

  const ReplicaOptions& options() const { return options_; }
  ReplicaStatus status() const;
  /// The commits of this process. A commit taken up at the start has serial 1.
  CommitLog& commits() { return commits_; }
  const CommitLog& commits() const { return commits_; }

  // Requests of callers, which take no thread of theirs.
  /// Where they get their answers, by the number of the request.
  RequestQueue& requests() { return requests_; }
  /// Asks for the newest version. The answer waits at most for a pull that already runs and one of
  /// its own.
  StatusOr<uint64_t> AskSync(bool force_full);
  /// Asks to compare every chunk with its digest; with `repair` a sync then fetches corrupt ones.
  /// The driving thread works in slices, so that a pull waits for one slice at most; all who wait
  /// when it begins share one pass.
  uint64_t AskCheck(bool repair);
  /// Pausing ends a pull that follows, unless that must go on; RunState::settled tells when.
  void SetPaused(bool paused);
  const RunState& run() const { return run_; }

  /// For engines that read the directory (receiver/engine).
  BufferGate& gate() { return gate_; }
  AgentAttachments& agents() { return agents_; }
  /// A receiver that is served here says that this chunk of the layout `fingerprint` came with
  /// other bytes than its digest, and it has lost its digest here: the next pull fetches it.
  void Suspect(const std::string& fingerprint, uint32_t chunk);

  void Stop();
  /// After Stop: waits until both threads have ended. The destructor does so, too.
  void Join();

 private:
  Replica(const ReplicaOptions& options, std::vector<std::unique_ptr<Upstream>> upstreams,
          TransportFactory transport, ThreadPool& pool, CoderRates& rates,
          std::unique_ptr<BufferHome> home);

  // The driving thread.
  void Run();
  /// Does what is due now. Returns false if nothing is due before `*again`.
  bool DoNext(SteadyClock::time_point* again);
  void Take(Step step, const Planner::Plan& plan, Upkeep::Task task);
  // Checks of memory and files.
  void RunUpkeep(Upkeep::Task task);
  Upkeep::Situation UpkeepSituation() const;
  /// Whether something else is to be done first: also an incoming version, if `incoming`.
  bool IsWanted(bool incoming) const;
  /// REQUIRES: there is one.
  Buffer& buffer() const { return *home_->buffer(); }

  const ReplicaOptions options_;
  // With locks of their own.
  Bell bell_;  // wakes the driving thread
  BufferGate gate_;
  RunState run_;
  ReplicaLine line_;
  CommitLog commits_;
  RequestQueue requests_;
  CorruptChunks corrupt_;
  const std::unique_ptr<BufferHome> home_;
  Planner planner_;
  // Used by the driving thread; what else may be called says each header.
  DownstreamLink downstream_;
  AgentLinks links_;
  Upkeep upkeep_;
  PullRunner pulls_;
  BufferSetup setup_;
  Verifier verifier_;
  bool slice_due_ = false;  // the last step was a pull
  AgentAttachments agents_;
  Thread thread_;
};

}  // namespace deltawire::receiver
