// Where a pull's whole chunks come from: the half of its state, the newest half where the chunk has
// not changed since, that half's bytes with the deltas since undone, or what was made so and kept.
// Owner: a ServedPull; the Model outlives it. Threads: any. Cost: a chunk's memory per copy, the
// deltas since the end was pinned up to a log's or a model's size, then the end's KeptChunks.
// Errors: kAborted (the bytes are gone), kDataLoss (memory lost its digest), naming the tensor.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/sync.h"
#include "sender/agent/model.h"

namespace deltawire::sender {

/// One chunk to send. `bytes` live as long as `keep`.
struct WholeChunk {
  Bytes bytes;
  std::shared_ptr<const void> keep;
  std::optional<uint32_t> half;  ///< that `bytes` lie in; none: in memory of their own
};

class ChunkBytes {
 public:
  explicit ChunkBytes(Model& model) : model_(model) {}

  /// `end` is where the pull ends, whatever is published: from now on the deltas that lead away
  /// from it are kept, as far as Follow is told of them. At most once.
  void Pin(std::shared_ptr<const Published> end);
  /// `newest` has been published. Cheap when nothing is pinned; when the deltas since have become
  /// too large, makes every chunk that they change again on the model's pool, and lets go of them.
  void Overtaken(const Published& newest);

  struct How {
    bool copy = false;   ///< into memory of its own, so that nobody waits for the socket
    bool check = false;  ///< a receiver doubts these bytes: compare them with their digest
  };
  /// The bytes of `chunk` in `at.state`; `at.lease` is null when its half may be written to.
  StatusOr<WholeChunk> Get(uint32_t chunk, const LeasedState& at, How how);

 private:
  StatusOr<WholeChunk> FromHalf(uint32_t chunk, const LeasedState& at, How how);
  /// What the end keeps, or FromNewest.
  StatusOr<WholeChunk> FromElsewhere(uint32_t chunk, const Published& end, How how);
  std::optional<StatusOr<WholeChunk>> FromKept(uint32_t chunk, const Published& end, How how) const;
  /// The same bytes in the newest half, or what Undo makes of those there.
  StatusOr<WholeChunk> FromNewest(uint32_t chunk, const Published& end, How how);
  StatusOr<WholeChunk> Undo(uint32_t chunk, const Published& end, const LeasedState& newest);
  /// Takes the deltas that lead to `newest`.
  void Follow(const Published& newest);
  void Compact();
  struct Changes {
    LogView keep;
    std::vector<const ChunkDelta*> chain;
  };
  /// The changes of `chunk` from `end` to `newest`, oldest first; nothing when some are not kept.
  std::optional<Changes> Since(uint32_t chunk, const Published& newest);
  bool HasItsDigest(uint32_t chunk, const Published& state, Bytes bytes) const;
  Status Damaged(uint32_t chunk, const Published& state) const;
  Status Gone(uint32_t chunk, const Published& end, const Published& newest) const;

  Model& model_;
  Mutex mu_;
  std::shared_ptr<const Published> end_;
  // Deltas are told apart by themselves: of a part, one number may be published twice.
  LogView since_;  // what has changed between end_ and where it begins is kept by end_
  std::shared_ptr<const Delta> last_;      // of since_, or before it; null: none is known
  uint64_t from_serial_ = 0, serial_ = 0;  // of the states where since_ begins and ends
  uint64_t since_bytes_ = 0;
  bool compacting_ = false;
  bool broken_ = false;  // since_ does not reach the newest state, and never will again
};

}  // namespace deltawire::sender
