// The deltas that led to a chunk's bytes, as the codec tight wants them, taken out of a log.
// Points into the view's deltas, which must outlive it. Pure; cost: a binary search per delta.
// Both ends build it: the sender from its log, the receiver from the deltas that it kept.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "common/delta/delta_log.h"
#include "kernels/kernels.h"

namespace deltawire {

class ChunkHistory {
 public:
  ChunkHistory() = default;
  /// The newest deltas of `log`, which lead to the bytes that its last one ends at: at most
  /// `limit`, and none before one that `chunk` went whole in.
  ChunkHistory(std::span<const std::shared_ptr<const Delta>> log, uint32_t chunk, size_t limit);

  size_t depth() const { return depth_; }
  /// Of the `depth` newest deltas. REQUIRES: depth <= depth().
  kernels::History First(size_t depth) const;

 private:
  size_t depth_ = 0;
  std::array<Bytes, kernels::kMaxHistory> deltas_;
  std::array<uint64_t, kernels::kMaxHistory> hashes_{};
};

/// The deltas of `log` that led to state `held`, if the receiver's own (`before[i]`: the state
/// before its delta i, newest first) are the same: a part of `log` that ends at `held`, perhaps
/// empty.
std::span<const std::shared_ptr<const Delta>> CommonHistory(const LogView& log, StateId held,
                                                            std::span<const StateId> before);

}  // namespace deltawire
