// Finds the bytes of a pull's whole chunks: in the half of the pull's state; in the newest half, if
// the chunk has not changed since; by undoing later deltas on the newest half's bytes; in
// KeptChunks. Owner: a ServedPull; the StateSource outlives it. Threads: any. Cost: a chunk's
// memory per copy; deltas since the pin up to a log's or the model's size, after that kept chunks.
// Errors: kAborted (the bytes are gone), kDataLoss (memory lost its digest), naming the tensor.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/serving/state_source.h"

namespace deltawire {

/// One chunk to send. `bytes` live as long as `keep`.
struct WholeChunk {
  Bytes bytes;
  std::shared_ptr<const void> keep;
  std::optional<uint32_t> half;  ///< the half that `bytes` lie in; nullopt: in memory of their own
};

class ChunkBytes {
 public:
  explicit ChunkBytes(StateSource& model) : model_(model) {}

  /// Fixes `end` as the state that the pull ends at, whatever is published later: from now on the
  /// deltas that lead away from `end` are kept, as far as Overtaken and Get see them. At most once.
  void Pin(std::shared_ptr<const Published> end);
  /// `newest` has been published. Cheap when nothing is pinned. When the deltas since `end` have
  /// become too large, rebuilds every chunk that they change on the model's pool, and drops the
  /// deltas.
  void Overtaken(const Published& newest);

  struct How {
    bool copy = false;   ///< into memory of its own, so that a slow socket does not occupy the half
    bool check = false;  ///< a receiver doubts these bytes: compare them with their digest
  };
  /// The bytes of `chunk` in `at.state`; `at.lease` is null when the state's half may be written
  /// to.
  StatusOr<WholeChunk> Get(uint32_t chunk, const LeasedState& at, How how);

 private:
  StatusOr<WholeChunk> FromHalf(uint32_t chunk, const LeasedState& at, How how);
  /// FromKept, or else FromNewest.
  StatusOr<WholeChunk> FromElsewhere(uint32_t chunk, const Published& end, How how);
  std::optional<StatusOr<WholeChunk>> FromKept(uint32_t chunk, const Published& end, How how) const;
  /// The newest half's bytes if they are the same, else the result of Undo.
  StatusOr<WholeChunk> FromNewest(uint32_t chunk, const Published& end, How how);
  StatusOr<WholeChunk> Undo(uint32_t chunk, const Published& end, const LeasedState& newest);
  /// Appends the deltas that lead to `newest` to since_.
  void Follow(const Published& newest);
  void Compact();
  struct Changes {
    LogView keep;
    std::vector<const ChunkDelta*> chain;
  };
  /// The changes of `chunk` from end_ to `newest`, oldest first; nullopt when some are not kept.
  std::optional<Changes> Since(uint32_t chunk, const Published& newest);
  bool HasItsDigest(uint32_t chunk, const Published& state, Bytes bytes) const;
  Status Damaged(uint32_t chunk, const Published& state) const;
  Status Gone(uint32_t chunk, const Published& end, const Published& newest) const;

  StateSource& model_;
  Mutex mu_;
  std::shared_ptr<const Published> end_;
  // Deltas are told apart by address: an agent that owns a part may publish one number twice.
  LogView since_;                          // changes between end_ and its start are in end_->kept
  std::shared_ptr<const Delta> last_;      // of since_, or the delta before it; null: none is known
  uint64_t from_serial_ = 0, serial_ = 0;  // of the states that since_ leads from and to
  uint64_t since_bytes_ = 0;
  bool compacting_ = false;
  bool broken_ = false;  // since_ does not reach the newest state, and cannot any more
};

}  // namespace deltawire
