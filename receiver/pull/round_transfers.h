// The transfers of a round's parts that run now, one per agent, and the agents whose parts are
// awaited. A PullRound owns it. Every method may be called from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/base/checked_mutex.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/net/pull_transport.h"

namespace deltawire::receiver {

class RoundTransfers {
 public:
  using Transport = std::shared_ptr<net::PullTransport>;

  RoundTransfers(size_t agents, std::span<const size_t> awaited);

  /// Ends the running transfers, and makes all later ones fail.
  void Cancel() ABSL_LOCKS_EXCLUDED(mu_);
  /// An awaited agent has its part, or announces it as incoming.
  void Announce(size_t agent) ABSL_LOCKS_EXCLUDED(mu_);

  // kCancelled: Cancel was called, or EndOthers.
  /// A transfer begins with these parts, each of which later calls Leave.
  Status Begin(std::vector<Transport> parts) ABSL_LOCKS_EXCLUDED(mu_);
  /// Waits for Announce(agent). After OK the agent's part counts as one that runs, and is to Add
  /// its transport or Leave. kAborted: all others have ended, and `patience` passed without it.
  Status Await(size_t agent, std::chrono::milliseconds patience) ABSL_LOCKS_EXCLUDED(mu_);
  Status Add(Transport part) ABSL_LOCKS_EXCLUDED(mu_);
  void Leave() ABSL_LOCKS_EXCLUDED(mu_);
  /// Ends the other parts, since the part of `agent` has failed: what they wait for may never come.
  void EndOthers(size_t agent, const Transport& part) ABSL_LOCKS_EXCLUDED(mu_);
  /// Whether EndOthers was called for another agent.
  bool EndedByAnother(size_t agent) const ABSL_LOCKS_EXCLUDED(mu_);
  /// All parts have ended.
  Status End() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  bool IsOver() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return cancelled_ || broken_; }

  mutable CheckedMutex mu_;
  CondVar cv_;
  std::vector<uint8_t> announced_ ABSL_GUARDED_BY(mu_);  // by agent: its part need not be awaited
  size_t moving_ ABSL_GUARDED_BY(mu_) = 0;               // parts that are open
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<size_t> broken_ ABSL_GUARDED_BY(mu_);  // the agent of the first EndOthers
  std::vector<Transport> running_ ABSL_GUARDED_BY(mu_);
};

}  // namespace deltawire::receiver
