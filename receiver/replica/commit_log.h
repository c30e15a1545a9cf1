// The versions that one process has committed for a model: the last one, the latest few, and the
// time for which each waited for its pull. A Replica owns it. Every method may be called from any
// thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/checked_mutex.h"
#include "common/base/identity.h"
#include "common/base/listeners.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/base/trace.h"
#include "common/delta/pull_stats.h"
#include "receiver/pull/pull_round.h"

namespace deltawire::receiver {

struct CommitTimes : RoundTimes {
  double queue = 0;    ///< from the first event that named the version to its pull; 0: not known
  double readers = 0;  ///< the wait for readers and engines
};

struct Commit {
  Identity id;
  PullStats stats;
  int64_t unix_nanos = 0;
  uint64_t serial = 0;  ///< rises by one with each commit of this process
  CommitTimes times = {};
};

class CommitLog {
 public:
  static constexpr size_t kRecent = 64;

  /// Adds `id`, which was committed before this process started, as the first commit.
  void TakeUp(const Identity& id) ABSL_LOCKS_EXCLUDED(mu_);
  /// Notes that an agent has named `state` for the first time.
  void NoteNamed(const Identity& state, SteadyClock::time_point now) ABSL_LOCKS_EXCLUDED(mu_);
  /// Adds a commit whose pull began at `began`, and returns its times with the queue. If `id` is
  /// the last commit again, that one gets these statistics, and the result is nullopt. `anew`: it
  /// is in another directory, so it counts as another commit.
  std::optional<CommitTimes> Add(const Identity& id, const PullStats& stats, CommitTimes times,
                                 SteadyClock::time_point began, bool anew) ABSL_LOCKS_EXCLUDED(mu_);
  /// Calls the listeners. REQUIRES: no lock is held.
  void Notify() { listeners_.Call(); }
  /// Ends the waits for a commit.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  std::optional<Commit> last() const ABSL_LOCKS_EXCLUDED(mu_);
  /// The last commit, if its serial is above `seen`. kUnavailable after Stop.
  StatusOr<std::optional<Commit>> CommitAfter(uint64_t seen) const ABSL_LOCKS_EXCLUDED(mu_);
  /// The latest commits of this process, the oldest first.
  std::vector<Commit> recent() const ABSL_LOCKS_EXCLUDED(mu_);
  /// `news` is called, without a lock, when CommitAfter may have something; see Listeners.
  [[nodiscard]] Listeners::Listener OnCommit(std::function<void()> news) {
    return listeners_.Add(std::move(news));
  }

 private:
  /// Returns the seconds from the first event that named `id` until `began`. Forgets this state and
  /// older ones.
  double TakeQueue(const Identity& id, SteadyClock::time_point began)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Listeners listeners_;  // not under mu_
  mutable CheckedMutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<Commit> last_ ABSL_GUARDED_BY(mu_);
  std::deque<Commit> recent_ ABSL_GUARDED_BY(mu_);
  std::deque<std::pair<TraceId, SteadyClock::time_point>> heard_ ABSL_GUARDED_BY(mu_);
};

}  // namespace deltawire::receiver
