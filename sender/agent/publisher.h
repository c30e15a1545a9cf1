// One model's thread: it publishes the versions that ranks have written, and scrubs the memory when
// it is idle. A rollback is published on its caller's thread. The states and the Offloads outlive
// it. Errors name the model and the version.
#pragma once

#include <functional>

#include "common/base/checked_mutex.h"
#include "common/base/stages.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/config/options.h"
#include "sender/agent/halves/model_states.h"
#include "sender/agent/offload/offloads.h"
#include "sender/agent/version_history.h"

namespace deltawire::sender {

/// Sums over this process's publishes of one model.
struct PublishTotals {
  uint64_t published = 0;
  uint64_t abandoned = 0;  ///< offloads that were not published
  uint64_t delta_bytes = 0;
  double trainer_wait_seconds = 0;
  double publish_seconds = 0;
};

class Publisher {
 public:
  Publisher(ModelStates& states, Offloads& offloads, const SenderOptions& options,
            StageObserver stages);
  /// REQUIRES: the Offloads are stopped, if Start was called.
  ~Publisher();

  void Start();
  /// Sets a callback for each publish, called without a lock. REQUIRES: before any offload.
  void SetListener(std::function<void()> changed) { changed_ = std::move(changed); }
  StatusOr<VersionInfo> RollBack(uint64_t version);

  PublishTotals totals() const;
  VersionHistory& history() { return history_; }
  const VersionHistory& history() const { return history_; }

 private:
  void Run();
  StatusOr<VersionInfo> Publish(const WrittenHalf& written);
  /// Writes the log line of a publish, and reports its stages.
  void Report(const VersionInfo& info) const;
  /// Scrubs some chunks. Returns the pause before the next call.
  std::chrono::nanoseconds ScrubSome();

  ModelStates& states_;
  Offloads& offloads_;
  const uint64_t scrub_bytes_per_s_;
  const StageObserver stages_;
  std::function<void()> changed_;
  VersionHistory history_;
  mutable CheckedMutex mu_;
  PublishTotals totals_ ABSL_GUARDED_BY(mu_);
  Thread thread_;
};

}  // namespace deltawire::sender
