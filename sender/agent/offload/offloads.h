// The offloads of one model: the calls of ranks and of those who wait for a publish, and the
// version to publish next. OffloadSession decides, OffloadDiff diffs. Thread-safe. Errors name the
// model and the version.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/checked_mutex.h"
#include "common/base/listeners.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/config/options.h"
#include "sender/agent/halves/model_states.h"
#include "sender/agent/offload/offload_diff.h"
#include "sender/agent/offload/offload_session.h"

namespace deltawire::sender {

struct OffloadGrant {
  std::filesystem::path half_path;
  uint64_t data_offset = 0;
  double waited_seconds = 0;
  uint64_t lease = 0;
  uint64_t attempt = 0;
  Identity published;           ///< while ranks write, no other version is published
  bool takes_payloads = false;  ///< against `published`
};

/// A written half that can be published.
struct WrittenHalf {
  uint32_t half = 0;
  StateId to;
  uint64_t attempt = 0;
  bool rollback = false;
  double offload_seconds = 0;
  double waited_seconds = 0;
  std::vector<bool> unchanged;
  std::shared_ptr<const SideFileSet> side_files;
  std::shared_ptr<PublishJob> job;
};

class Offloads {
 public:
  /// Returns true once the caller has gone.
  using Gone = std::function<bool()>;

  Offloads(ModelStates& states, const SenderOptions& options, uint64_t first_lease);

  /// `news` is called, without a lock, when an offload progresses or ends; see Listeners.
  [[nodiscard]] Listeners::Listener OnNews(std::function<void()> news) {
    return listeners_.Add(std::move(news));
  }

  // The trainer's ranks.
  StatusOr<OffloadGrant> Begin(const OffloadRequest& request, const Gone& gone);
  /// Begins a rank's AttendOffload call, which lasts until EndAttend. kAborted unless that offload
  /// is running and `rank` has begun it.
  Status Attend(uint64_t lease, uint32_t rank);
  /// Whether `rank` is ready or the version published. kAborted if the offload was abandoned.
  StatusOr<bool> IsReady(uint64_t lease, uint32_t rank) const;
  /// Ends the call. If the rank is not ready, it has died, which abandons the offload. REQUIRES:
  /// Attend returned OK.
  void EndAttend(uint64_t lease, uint32_t rank);
  /// See OffloadSession.
  void AddClient(uint64_t client);
  void RemoveClient(uint64_t client);
  Status MarkWritten(uint64_t lease, const WrittenNotice& notice);
  /// Returns whether this was the last rank, so that the publish has begun.
  StatusOr<bool> MarkReady(const ReadyNotice& notice);
  Status Abandon(uint64_t lease, uint32_t rank, const std::string& reason);

  /// Adds `change` to the callers that wait for the publish. While there are any, the offload is
  /// held.
  void CountWaiters(uint64_t lease, int change);
  /// Returns the outcome of the offload of `lease`, or with 0 of `version` or a newer one: the
  /// info, the reason why that offload (0: the last of `version`) was abandoned, or nullopt while
  /// the caller must wait. An offload of an earlier process is known by its `attempt`, if that is
  /// published.
  std::optional<StatusOr<VersionInfo>> Outcome(uint64_t version, uint64_t lease,
                                               uint64_t attempt = 0) const;

  // The publisher.
  /// Blocks until an offload can be published, `until`, or Stop. Abandons offloads that take too
  /// long meanwhile.
  std::optional<WrittenHalf> AwaitWritten(SteadyClock::time_point until);
  /// Fills the inactive half with the bytes of `version`, and returns it for the publish.
  StatusOr<WrittenHalf> RollBack(uint64_t version);
  /// Makes `state` the newest one, and notifies the ranks and the incoming version's pulls.
  void MarkPublished(std::shared_ptr<Published> state, std::shared_ptr<const Delta> delta);
  void FailPublish(const Status& why);
  bool stopped() const;
  bool idle() const;

  /// The incoming version, once one of its chunks has been diffed; else null.
  std::shared_ptr<IncomingVersion> incoming() const;
  uint64_t version() const;    ///< being offloaded; 0: none
  uint64_t abandoned() const;  ///< offloads that were not published
  OffloadDiff& diff() { return diff_; }
  const OffloadDiff& diff() const { return diff_; }

  /// Ends every wait with `why`. A running publish finishes, and no other begins. The first reason
  /// stays.
  void Stop(const Status& why);
  /// Stops, or returns kFailedPrecondition while an offload is running.
  Status StopIfFree(const Status& why);

 private:
  StatusOr<OffloadGrant> Grant(const OffloadRequest& request, uint64_t lease, const Gone& gone)
      ABSL_LOCKS_EXCLUDED(mu_);
  StatusOr<bool> IsReadyNow(uint64_t lease, uint32_t rank) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Cancels early diffs and wakes the publisher if the session has ended the offload.
  void TidyAfterSession() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Identity Newest() const;  ///< the published state's; empty: none

  ModelStates& states_;
  OffloadDiff diff_;
  Listeners listeners_;

  // Held before the locks of the members above, of the states and of the job.
  mutable CheckedMutex mu_;
  CondVar cv_;
  Status stopped_ ABSL_GUARDED_BY(mu_);  // Stop's reason
  OffloadSession session_ ABSL_GUARDED_BY(mu_);
};

}  // namespace deltawire::sender
