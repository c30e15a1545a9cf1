// The bounded log of a model's newest deltas, and the choice of what to send a receiver for a
// chunk. The publisher owns the DeltaLog and locks it. A LogView is an immutable copy of its
// pointers, which pulls read without a lock. A plan costs a binary search per delta. A chunk that
// no delta can serve is planned full.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "common/delta/delta.h"

namespace deltawire {

/// Deltas in publish order: log[i].to() == log[i+1].from().
using LogView = std::vector<std::shared_ptr<const Delta>>;

/// The plan to bring one of a receiver's chunks to the newest version.
struct ChunkPlan {
  enum class Kind : uint8_t { kNothing, kFull, kDelta };
  Kind kind = Kind::kFull;
  bool base_refused = false;             ///< full because no logged version has the base's digest
  std::vector<const ChunkDelta*> chain;  ///< kDelta: oldest first; valid while the view lives
};

/// `held_version` and `held_digest` describe the receiver's chunk (version ~0: unknown). `digest`
/// is the chunk's digest now, `chunk_bytes` the cost of sending it whole. A base is accepted only
/// if the log recorded its digest for that version.
ChunkPlan PlanChunk(const LogView& log, uint32_t chunk, uint64_t held_version, uint64_t held_digest,
                    uint64_t digest, uint64_t chunk_bytes);

/// Plans a chunk that this pull has already sent and that is `behind` publishes old.
ChunkPlan PlanLift(const LogView& log, uint32_t chunk, uint64_t behind, uint64_t chunk_bytes);

class DeltaLog {
 public:
  explicit DeltaLog(uint64_t limit_bytes, size_t limit_deltas = ~size_t{0})
      : limit_(limit_bytes), limit_deltas_(limit_deltas) {}

  /// Appends, then evicts the oldest deltas until the log fits both limits. The newest always
  /// stays.
  void Append(std::shared_ptr<const Delta> delta);
  void Clear();
  /// Takes effect at the next Append.
  void set_limit_deltas(size_t n) { limit_deltas_ = n; }

  LogView View() const { return {deltas_.begin(), deltas_.end()}; }
  uint64_t bytes() const { return bytes_; }
  uint64_t limit() const { return limit_; }

 private:
  const uint64_t limit_;
  size_t limit_deltas_;
  uint64_t bytes_ = 0;
  std::deque<std::shared_ptr<const Delta>> deltas_;
};

}  // namespace deltawire
