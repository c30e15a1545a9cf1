// Finds the bytes of a pull's whole chunks: in the half of the pull's state, in the newest half if
// the chunk has not changed since, or by undoing later deltas on newer bytes (WayBack).
// Thread-safe; the StateSource outlives it. Errors name the tensor: kAborted (the bytes are gone),
// kDataLoss (the bytes in memory do not have their digest).
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
  std::optional<uint32_t> half;  ///< the half that holds `bytes`; nullopt: a copy
};

class ChunkBytes {
 public:
  explicit ChunkBytes(StateSource& model) : model_(model) {}

  struct How {
    bool copy = false;   ///< copies the bytes, so that a slow socket does not occupy the half
    bool check = false;  ///< compares the bytes with their digest, since a receiver found others
  };
  /// Returns the bytes of `chunk` in `at.state`. A null `at.lease` means that the state's half may
  /// be written to.
  StatusOr<WholeChunk> Get(uint32_t chunk, const LeasedState& at, How how);

 private:
  StatusOr<WholeChunk> FromHalf(uint32_t chunk, const LeasedState& at, How how);
  StatusOr<WholeChunk> FromWayBack(uint32_t chunk, const Published& end, How how);
  /// `newest`: the start of the way, if it has no old bytes.
  StatusOr<WholeChunk> Undo(uint32_t chunk, const Published& end, const WayBack::Way& way,
                            const LeasedState& newest);
  bool HasItsDigest(uint32_t chunk, const Published& state, Bytes bytes) const;
  Status Damaged(uint32_t chunk, const Published& state) const;
  Status Gone(uint32_t chunk, const Published& end, const Published& newest) const;

  StateSource& model_;
};

}  // namespace deltawire
