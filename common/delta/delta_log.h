// The bounded log of a model's newest deltas, and the choice of what a receiver is sent of a chunk.
// DeltaLog belongs to the publisher, under its lock; a LogView is an immutable copy (of pointers)
// that pulls read without one. Cost: a view copies one pointer per delta; Plan is a binary search
// per delta that it looks at. No errors: what cannot be planned as a delta is planned full.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "common/delta/delta.h"

namespace deltawire {

/// Deltas in publish order: log[i].to() == log[i+1].from().
using LogView = std::vector<std::shared_ptr<const Delta>>;

/// What one chunk of one receiver needs to become the newest.
struct ChunkPlan {
  enum class Kind : uint8_t { kNothing, kFull, kDelta };
  Kind kind = Kind::kFull;
  bool base_refused = false;             ///< full because the base was not what it should be
  std::vector<const ChunkDelta*> chain;  ///< kDelta: oldest first; valid while the view lives
};

/// `held_version`/`held_digest`: what the receiver says the chunk is (version ~0: unknown).
/// `digest`: of the chunk now. `chunk_bytes`: its size, the price of sending it whole.
/// A base is accepted only when its digest is the one that the log recorded for that version.
ChunkPlan PlanChunk(const LogView& log, uint32_t chunk, uint64_t held_version, uint64_t held_digest,
                    uint64_t digest, uint64_t chunk_bytes);

/// The same for a chunk that this pull has already sent, as of `behind` publishes ago.
ChunkPlan PlanLift(const LogView& log, uint32_t chunk, uint64_t behind, uint64_t chunk_bytes);

class DeltaLog {
 public:
  explicit DeltaLog(uint64_t limit_bytes, size_t limit_deltas = ~size_t{0})
      : limit_(limit_bytes), limit_deltas_(limit_deltas) {}

  /// Appends and drops the oldest until the log fits its limit (the newest always stays)
  /// and holds no more than its number of deltas.
  void Append(std::shared_ptr<const Delta> delta);
  void Clear();
  /// For what is appended from now on.
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
