// The last 64 versions that a model published, and when its receivers committed them, for the
// status page and for the time that a delivery took. Any thread may call any method.
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
    uint32_t receivers = 0;  ///< that have said that they committed it
    /// From ready until the last of them had said so, by this machine's clock.
    double delivered_seconds = 0;
    PullStats slowest;  ///< the pull of that one
  };

  void Add(const VersionInfo& info);
  /// A receiver has just said that it committed `id`, of which this agent may own a part. Returns
  /// the seconds since the version was ready; nullopt where it is not among the last ones, or was
  /// published by an earlier process.
  std::optional<double> CountCommit(const Identity& id, const PullStats& pull, int64_t unix_nanos);
  /// The oldest first.
  std::vector<Entry> recent() const;

 private:
  mutable CheckedMutex mu_;
  std::deque<Entry> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace deltawire::sender
