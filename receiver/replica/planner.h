// The decision which version a replica pulls, prepares, commits or discards next. It follows from
// the events of the agents and the group, and from what the replica holds. A Replica owns it. Every
// method may be called from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/checked_mutex.h"
#include "common/base/group_word.h"
#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "receiver/attach/follower.h"
#include "receiver/attach/group_member.h"
#include "receiver/attach/upstream.h"
#include "receiver/buffer/buffer_gate.h"
#include "receiver/pull/running_pull.h"
#include "receiver/replica/buffer_home.h"
#include "receiver/replica/corrupt_chunks.h"
#include "receiver/replica/request_queue.h"
#include "receiver/replica/run_state.h"

namespace deltawire::receiver {

class Planner {
 public:
  using Time = SteadyClock::time_point;
  /// The replica's side of a decision. These outlive the planner.
  struct Env {
    const BufferHome& home;
    const BufferGate& gate;
    const RunState& run;
    const RequestQueue& requests;
    const CorruptChunks& corrupt;
  };
  Planner(const std::vector<std::string>& addresses, const Follower::Options& options,
          const Env& env);

  // Events.
  struct Change {
    std::vector<Identity> named;  ///< versions that the agent has named for the first time
    bool incoming = false;        ///< the agent's incoming version is another one than was known
    bool all_attached = false;
  };
  Change NoteEvent(size_t agent, const SenderEvent& event) ABSL_LOCKS_EXCLUDED(mu_);
  /// An attachment has ended. Returns whether it had brought an event.
  bool NoteEnded(size_t agent) ABSL_LOCKS_EXCLUDED(mu_);
  /// An agent was asked for its newest state.
  void Learn(size_t agent, const Identity& newest) ABSL_LOCKS_EXCLUDED(mu_);

  // Decisions.
  struct Plan {
    bool attached = false;  ///< to all agents; if not, the rest is not set
    GroupMember::Do what = GroupMember::Do::kFollow;
    Follower::Choice choice;
    bool lost = false;  ///< the unwritten version of which chunks have come was abandoned
  };
  /// The next thing to do if no caller asks for a pull. `unwritten`: see
  /// Puller::unwritten_parts.
  Plan Next(std::span<const Identity> unwritten, Time now) const ABSL_LOCKS_EXCLUDED(mu_);
  /// Whether a pull is due; `incoming`: also one of a version that the trainer still writes.
  bool WantsPull(bool incoming) const ABSL_LOCKS_EXCLUDED(mu_);
  /// Whether SyncTarget needs the agents' newest states, since their last events may be older than
  /// a publish that the caller of a sync knows of. A single agent's pull ends at its newest state
  /// in any case.
  bool NeedsNewest() const ABSL_LOCKS_EXCLUDED(mu_);
  /// The target of a pull that a caller asks for. `or_older`: also a state that is older than what
  /// is held.
  StatusOr<Follower::Target> SyncTarget(const std::string& model, bool or_older) const
      ABSL_LOCKS_EXCLUDED(mu_);
  /// Whether all agents have published what `pull` began to pull before that.
  bool HasPublished(const RunningPull& pull) const ABSL_LOCKS_EXCLUDED(mu_);
  /// Announces to the round of such a pull the agents that have their parts by now, or will.
  void NotifyRound(const RunningPull& pull) const ABSL_LOCKS_EXCLUDED(mu_);
  /// Whether `pull`, of a version that was not published when it began, is to end: the agents have
  /// abandoned the version, or the group wants another one.
  bool Obsoletes(const RunningPull& pull) const ABSL_LOCKS_EXCLUDED(mu_);

  // Outcomes.
  struct Outcome {
    Status status;
    bool hold = false;       ///< the target was to be prepared for its group
    bool paused = false;     ///< a pause or the stop has ended the pull
    bool withdrawn = false;  ///< the target does not come, or not before its group asks for it
    bool refused = false;    ///< no byte was at fault, as when the agent refused to open the pull
  };
  void NotePull(const Follower::Target& target, const Outcome& outcome) ABSL_LOCKS_EXCLUDED(mu_);
  /// `version` is held ready for the group. `unasked`: it came while it was written.
  void NotePrepared(const Identity& version, bool unasked) ABSL_LOCKS_EXCLUDED(mu_);
  /// Notes that the prepared version is discarded.
  void NoteDiscarded() ABSL_LOCKS_EXCLUDED(mu_);
  /// The commit of what was prepared has ended. If it failed, it is tried again after a pause.
  /// `kept`: the version is still prepared. Otherwise it is pulled as by a member that comes back.
  void NoteCommit(const Status& ended, bool paused, bool kept) ABSL_LOCKS_EXCLUDED(mu_);
  /// A pull has committed `part` of an agent.
  void NotePart(size_t agent, const Identity& part) ABSL_LOCKS_EXCLUDED(mu_);

  struct Agent {
    Identity newest;
    bool attached = false;
  };
  struct Known {
    std::vector<Agent> agents;
    bool attached = false;           ///< to all agents
    std::optional<Identity> newest;  ///< that all agents have published
    std::string group;               ///< empty: it is a member of none
    Identity prepared;
    uint64_t delta_bytes = 0;  ///< of the agents' newest versions
  };
  Known known() const ABSL_LOCKS_EXCLUDED(mu_);
  bool attached() const ABSL_LOCKS_EXCLUDED(mu_);
  /// The answer to the group.
  GroupReport report() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Follower::Situation Situation() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Plan NextUnder(Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Env env_;
  mutable CheckedMutex mu_;
  Follower follower_ ABSL_GUARDED_BY(mu_);
  GroupMember member_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> delta_bytes_ ABSL_GUARDED_BY(mu_);  // by agent, of its newest version
};

}  // namespace deltawire::receiver
