// The deltas that pulls have applied to a buffer: for the catch-up of its second file, and for the
// delta files that engines read. Above its limit it keeps the newest: older ones would bring up a
// file that has fallen behind, which a copy does as well, and an engine reads a chunk whole if its
// delta is missing. A PullSink owns it. Every method may be called from any
// thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "common/base/checked_mutex.h"
#include "receiver/buffer/buffer_slot.h"
#include "receiver/pull/staged_deltas.h"

namespace deltawire::receiver {

class AppliedDeltas {
 public:
  explicit AppliedDeltas(uint64_t limit_bytes) : limit_(limit_bytes) {}

  /// Whether Add keeps anything. False at first.
  void SetKeep(bool keep) { keep_ = keep; }
  void Add(StagedDelta&& applied);
  /// The deltas since Clear, in order of application within a chunk. Their payloads live until the
  /// next Add or Clear.
  std::vector<AppliedDelta> All() const;
  void Clear();

 private:
  const uint64_t limit_;
  std::atomic<bool> keep_{false};
  mutable CheckedMutex mu_;
  std::deque<StagedDelta> deltas_ ABSL_GUARDED_BY(mu_);
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace deltawire::receiver
