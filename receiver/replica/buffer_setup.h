// The fit between a replica's buffer and what its agents describe. It asks the agents for their
// layout and parts at the start, when these may have changed, and when the directory is gone, and
// makes the buffer for them. A Replica owns it. Its driving thread alone calls Describe and
// CheckDirectory; every other method may be called from any thread.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "common/base/backoff.h"
#include "common/base/checked_mutex.h"
#include "common/base/checksum.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/layout/coverage.h"
#include "receiver/attach/upstream.h"
#include "receiver/buffer/buffer_gate.h"
#include "receiver/pull/downstream_link.h"
#include "receiver/replica/agent_links.h"
#include "receiver/replica/buffer_home.h"
#include "receiver/replica/corrupt_chunks.h"
#include "receiver/replica/puller.h"
#include "receiver/replica/replica_line.h"
#include "receiver/replica/replica_options.h"
#include "receiver/replica/run_state.h"
#include "receiver/replica/upkeep.h"

namespace deltawire::receiver {

class BufferSetup {
 public:
  using Time = SteadyClock::time_point;
  /// The objects that depend on the layout. They outlive this.
  struct Env {
    const ReplicaOptions& options;
    BufferHome& home;
    BufferGate& gate;
    RunState& run;
    ReplicaLine& line;
    CorruptChunks& corrupt;
    DownstreamLink& downstream;
    AgentLinks& links;
    Upkeep& upkeep;
    Puller& puller;
  };
  explicit BufferSetup(const Env& env)
      : env_(env), random_(env.options.seed), parts_(env.links.size()) {}

  /// The chunks that an agent publishes.
  struct Part {
    Coverage owned;
    uint64_t owned_bytes = 0;
    Hash128 lineage;  ///< of the agent's last description or event; zero: not known
  };
  /// By agent.
  std::vector<Part> parts() const ABSL_LOCKS_EXCLUDED(mu_);

  /// Whether Describe is to come before the next pull.
  bool due() const ABSL_LOCKS_EXCLUDED(mu_);
  /// The end of the pause after a Describe that failed. A caller's sync need not wait for it.
  Time due_at() const ABSL_LOCKS_EXCLUDED(mu_);
  /// An agent's newest version is of `lineage`. A new one may have another layout or part, for
  /// which a pull would be refused.
  void NoteLineage(size_t agent, const Hash128& lineage) ABSL_LOCKS_EXCLUDED(mu_);
  /// An agent has refused a pull, so its layout or part may be another one.
  void Renew() ABSL_LOCKS_EXCLUDED(mu_);

  /// Asks the agents, and makes the buffer. REQUIRES: nothing is prepared.
  Status Describe() ABSL_LOCKS_EXCLUDED(mu_);
  /// Has Describe make the buffer anew if another process removed its directory.
  void CheckDirectory() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Status Prepare(std::vector<ModelDescription> descriptions) ABSL_LOCKS_EXCLUDED(mu_);
  /// Destroys the buffer and forgets what is known of it.
  void DiscardBuffer();

  const Env env_;
  Backoff backoff_;
  std::mt19937_64 random_;
  mutable CheckedMutex mu_;
  bool due_ ABSL_GUARDED_BY(mu_) = true;
  Time due_at_ ABSL_GUARDED_BY(mu_){};
  std::vector<Part> parts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace deltawire::receiver
