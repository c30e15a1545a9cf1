// One model on an inference node. Its driving thread keeps the buffer in step with the sender, or
// with agents that each own a part: a step at a time, chosen by NextStep and done by the members.
// Attachments have a thread of their own, so that no pull silences them. The Daemon owns it. Public
// methods may be called from any thread. status() shows an error until the next success.
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

/// An agent of the trainer, in a replica's status.
struct AgentView {
  std::string address;
  Identity newest;
  Coverage owned;
  uint64_t owned_bytes = 0;
  bool attached = false;
  std::string in_use;  ///< the one of several addresses that is used now
};

struct ReplicaStatus : PullTotals, UpkeepTotals {
  bool attached = false;  ///< attached to every agent
  bool following = false;
  Identity committed;
  Identity newest;  ///< newest state that all agents have published; epoch 0: none
  ReceiverPhase phase = ReceiverPhase::kNone;
  std::string message;  ///< the last failure, or the reason to wait
  uint64_t model_bytes = 0;
  uint64_t bytes_done = 0;
  uint64_t bytes_total = 0;
  uint64_t lost_attachments = 0;  ///< attachments ended because of silence or lost events
  uint64_t scrub_mismatches = 0;  ///< chunks that had lost their digest
  uint32_t buffers = 0;
  std::string buffers_why;
  std::string readers;  ///< processes that an update waits for now
  double reader_wait_seconds = 0, worst_reader_wait_seconds = 0;
  std::string fingerprint;
  std::vector<AgentView> agents;
  std::string group;  ///< empty: it is a member of none
  Identity prepared;  ///< waits for the group's decision; epoch 0: nothing
};

class Replica {
 public:
  /// Locks the directory, takes up the buffer in it, and starts both threads. kAlreadyExists names
  /// another owner of the directory. `upstreams` has one upstream per agent; `transport` makes the
  /// transport of each pull.
  static StatusOr<std::unique_ptr<Replica>> Start(const ReplicaOptions& options,
                                                  std::vector<std::unique_ptr<Upstream>> upstreams,
                                                  TransportFactory transport, ThreadPool& pool,
                                                  CoderRates& rates);
  ~Replica();

  const ReplicaOptions& options() const { return options_; }
  ReplicaStatus status() const;
  /// The commits of this process. A version that was there at the start has serial 1.
  CommitLog& commits() { return commits_; }
  const CommitLog& commits() const { return commits_; }

  // Requests, which block no caller.
  /// The answers, by the number of the request.
  RequestQueue& requests() { return requests_; }
  /// Asks for the newest version. The answer waits at most for a pull that already runs and one of
  /// its own.
  StatusOr<uint64_t> AskSync(bool force_full);
  /// Asks to compare every chunk with its digest; with `repair` a sync then fetches corrupt ones.
  uint64_t AskCheck(bool repair);
  /// Pausing ends a pull that no caller asked for, unless it must go on. run().settled() says when
  /// a pause is complete.
  void SetPaused(bool paused);
  const RunState& run() const { return run_; }

  /// For engines that read the directory (receiver/engine).
  BufferGate& gate() { return gate_; }
  AgentAttachments& agents() { return agents_; }
  /// Has the next pull fetch a chunk of the layout `fingerprint`, which came to a served receiver
  /// without its digest, and has lost it here, too.
  void ReportCorrupt(const std::string& fingerprint, uint32_t chunk);

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
  Bell bell_;  // wakes the driving thread
  BufferGate gate_;
  RunState run_;
  ReplicaLine line_;
  CommitLog commits_;
  RequestQueue requests_;
  CorruptChunks corrupt_;
  const std::unique_ptr<BufferHome> home_;
  Planner planner_;
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
