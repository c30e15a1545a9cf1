// Finds the bytes of a pull's whole chunks: in the half of the pull's state; in the newest half, if
// the chunk has not changed since; by undoing later deltas on the newest half's bytes, or on older
// bytes that were kept (WayBack). Owner: a ServedPull; the StateSource outlives it. Threads: any.
// Cost: a chunk's memory per copy.
// Errors: kAborted (the bytes are gone), kDataLoss (memory lost its digest), naming the tensor.
#pragma once

#include <memory>
#include <optional>

#include "common/base/status.h"
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

  struct How {
    bool copy = false;   ///< into memory of its own, so that a slow socket does not occupy the half
    bool check = false;  ///< a receiver doubts these bytes: compare them with their digest
  };
  /// The bytes of `chunk` in `at.state`; `at.lease` is null when the state's half may be written
  /// to.
  StatusOr<WholeChunk> Get(uint32_t chunk, const LeasedState& at, How how);

 private:
  StatusOr<WholeChunk> FromHalf(uint32_t chunk, const LeasedState& at, How how);
  /// By way of the state's WayBack.
  StatusOr<WholeChunk> FromElsewhere(uint32_t chunk, const Published& end, How how);
  /// `newest`: what the way begins at, if it has no bytes of its own.
  StatusOr<WholeChunk> Undo(uint32_t chunk, const Published& end, const WayBack::Way& way,
                            const LeasedState& newest);
  bool HasItsDigest(uint32_t chunk, const Published& state, Bytes bytes) const;
  Status Damaged(uint32_t chunk, const Published& state) const;
  Status Gone(uint32_t chunk, const Published& end, const Published& newest) const;

  StateSource& model_;
};

}  // namespace deltawire
