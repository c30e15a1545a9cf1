// A count of what has come in one round of a pull, and the chunks that came out wrong. A PullSink
// owns it. Every method may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "common/base/checked_mutex.h"
#include "common/delta/pull_stats.h"

namespace deltawire::receiver {

class RoundTally {
 public:
  void AddBytes(uint64_t bytes) { bytes_ += bytes; }
  void AddStageSeconds(double seconds) { stage_seconds_ += seconds; }
  /// A chunk came in this form, by a delta of the history or without.
  void CountForm(size_t form, uint64_t bytes, bool by_history = false) ABSL_LOCKS_EXCLUDED(mu_);
  /// A delta did not fit, and its chunk was refused.
  void CountRefusal() { ++refusals_; }
  /// A chunk came whole with another digest. Returns whether to log it: with a wrong key every
  /// chunk has another digest, so only the first are named.
  bool AddMismatched(uint32_t chunk) ABSL_LOCKS_EXCLUDED(mu_);
  /// A chunk came out wrong, and is unknown now.
  void AddCorrupt(uint32_t chunk) ABSL_LOCKS_EXCLUDED(mu_);
  /// The buffer could not be made ready, which is not the sender's doing.
  void MarkTouchFailed() { touch_failed_ = true; }

  /// Payload bytes.
  uint64_t bytes() const { return bytes_; }
  /// Time that all streams together took to check and decode what came.
  double stage_seconds() const { return stage_seconds_; }
  bool touch_failed() const { return touch_failed_; }
  bool has_refusals() const { return refusals_ > 0; }
  /// Chunks that came whole with another digest, even if a later frame was right: the sender should
  /// check its own bytes.
  std::set<uint32_t> mismatched() const ABSL_LOCKS_EXCLUDED(mu_);
  bool has_corrupt() const ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<uint32_t> TakeCorrupt() ABSL_LOCKS_EXCLUDED(mu_);
  void AddTo(PullStats& stats) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  std::atomic<uint64_t> bytes_{0}, refusals_{0};
  std::atomic<double> stage_seconds_{0};
  std::atomic<bool> touch_failed_{false};
  mutable CheckedMutex mu_;
  std::vector<uint32_t> corrupt_ ABSL_GUARDED_BY(mu_);
  std::set<uint32_t> mismatched_ ABSL_GUARDED_BY(mu_);
  uint64_t history_chunks_ ABSL_GUARDED_BY(mu_) = 0;
  FormCounts forms_ ABSL_GUARDED_BY(mu_);
};

}  // namespace deltawire::receiver
