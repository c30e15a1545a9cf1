// The past deltas that led to a chunk's bytes, as the codec tight needs them. The sender builds it
// from its log, the receiver from the deltas that it kept. It points into those deltas, which must
// outlive it. Costs a binary search per delta.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "common/delta/delta_log.h"
#include "kernels/kernels.h"

namespace deltawire {

/// The memory of a receiver for the past deltas of one model.
constexpr uint64_t kHistoryBytes = uint64_t{256} << 20;

class ChunkHistory {
 public:
  ChunkHistory() = default;
  /// Collects the newest deltas of `log`, at most `limit`. Going back, it stops before the first
  /// delta in which `chunk` has no payload (ChunkDelta::full).
  ChunkHistory(std::span<const std::shared_ptr<const Delta>> log, uint32_t chunk, size_t limit);

  size_t depth() const { return depth_; }
  /// Returns the history of the `depth` newest deltas. REQUIRES: depth <= depth().
  kernels::History First(size_t depth) const;

 private:
  size_t depth_ = 0;
  std::array<Bytes, kernels::kMaxHistory> deltas_;
  std::array<uint64_t, kernels::kMaxHistory> hashes_{};
};

/// Returns the deltas that both ends have kept: the part of `log` that ends at state `held` and
/// goes back as far as the receiver's own deltas; may be empty. `before[i]` is the state before the
/// receiver's delta i, newest first.
std::span<const std::shared_ptr<const Delta>> CommonHistory(const LogView& log, StateId held,
                                                            std::span<const StateId> before);

}  // namespace deltawire
