// The puller of a replica, and its use, from the choice of a caller's target to the notes of how
// they ended: for callers, for the planner, and for a group that decides in two steps. A Replica
// owns it; its driving thread alone uses it.
#pragma once

#include <utility>
#include <vector>

#include "common/base/identity.h"
#include "common/base/receiver_phase.h"
#include "common/base/status.h"
#include "receiver/attach/follower.h"
#include "receiver/buffer/buffer_gate.h"
#include "receiver/replica/agent_attachments.h"
#include "receiver/replica/buffer_setup.h"
#include "receiver/replica/planner.h"
#include "receiver/replica/puller.h"
#include "receiver/replica/replica_line.h"
#include "receiver/replica/request_queue.h"
#include "receiver/replica/run_state.h"

namespace deltawire::receiver {

class PullRunner : private Puller::Owner {
 public:
  /// The objects that a pull works with, and that note its end. They outlive this.
  struct Env {
    Puller::Env pull;
    RunState& run;
    ReplicaLine& line;
    RequestQueue& requests;
    Planner& planner;
    BufferSetup& setup;
    AgentAttachments& agents;
  };
  PullRunner(const Env& env, TransportFactory transport)
      : env_(env), puller_(env.pull, *this, std::move(transport)) {}

  Puller& puller() { return puller_; }
  const Puller& puller() const { return puller_; }

  // REQUIRES for both pulls: there is a buffer.
  /// Pulls for the callers of a sync, and answers them. Does nothing if they have gone.
  void PullForCallers();
  /// Pulls `target`, unless a pause forbids it. `hold`: makes it ready for a group's word, and
  /// commits nothing.
  void Pull(const Follower::Target& target, bool hold);
  /// Commits what is prepared, unless a pause forbids it. REQUIRES: something is.
  void CommitPrepared();
  /// Discards what is prepared, if anything is.
  void DiscardPrepared();
  /// Discards what has come of an unwritten version.
  void DiscardUnwritten();

  /// The phase while nothing is pulled.
  ReceiverPhase RestingPhase() const;

 private:
  StatusOr<Follower::Target> ChooseForCallers(bool or_older);
  /// Pulls the target, unless its choice failed, and notes the end.
  Status Run(const StatusOr<Follower::Target>& chosen, const Puller::Wish& wish);
  /// Shows how a pull, or the commit of what was prepared, ended, and ends the use of the buffer.
  void NoteEnd(const Status& ended, bool paused, const Identity& target);
  /// Reports the end, and then does what nobody waits for.
  void ReportEnd(bool committed);
  bool IsPause(const Status& ended) const {
    return absl::IsCancelled(ended) && env_.run.state() != RunState::State::kRunning;
  }
  /// Whether the pull would have had to change bytes that a reader sees before its group's word.
  bool CannotPrepare() const {
    return env_.pull.gate.refusal() == BufferGate::Refusal::kCannotPrepare;
  }

  StatusOr<uint64_t> MayPull(const Follower::Target& target) override;
  void OnPhase(ReceiverPhase phase) override;
  void OnProgress() override;
  void OnCommit(const std::vector<PullRound::Result>& results) override;

  const Env env_;
  Puller puller_;
};

}  // namespace deltawire::receiver
