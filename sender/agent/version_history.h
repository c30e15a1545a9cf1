// The last 64 published versions of a model, with their receivers' commits, for the status page and
// the stage `deliver`. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "common/base/checked_mutex.h"
#include "common/base/sync.h"
#include "common/delta/pull_stats.h"
#include "common/delta/version_info.h"

namespace deltawire::sender {

class VersionHistory {
 public:
  static constexpr size_t kKept = 64;

  struct Entry {
    VersionInfo info;
    uint32_t receivers = 0;  ///< that have reported its commit
    /// From ready to the last report, by this machine's clock.
    double delivered_seconds = 0;
    PullStats slowest;  ///< of the last receiver
  };

  void Add(const VersionInfo& info);
  /// Counts a receiver's commit of `id`, of which this agent may own a part. Returns the seconds
  /// since the version was ready; nullopt if this process did not publish it among the last ones.
  std::optional<double> CountCommit(const Identity& id, const PullStats& pull, int64_t unix_nanos);
  /// The oldest first.
  std::vector<Entry> recent() const;

 private:
  mutable CheckedMutex mu_;
  std::deque<Entry> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace deltawire::sender
