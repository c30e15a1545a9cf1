// The active half as the base of an offload's diff: its bytes, its digests, and its chunks that
// turn out corrupt. Any thread may use it, each chunk by one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/base/bytes.h"
#include "common/layout/chunks.h"
#include "common/serving/version_store.h"
#include "kernels/kernels.h"

namespace deltawire::sender {

struct DiffHalves {
  const ChunkTable* chunks = nullptr;
  const kernels::Backend* backend = nullptr;
  const kernels::DigestKey* key = nullptr;
  Bytes active;           ///< empty: nothing was published, every chunk is new
  MutableBytes inactive;  ///< written only for payloads and unchanged tensors
  std::shared_ptr<const std::vector<uint64_t>> active_digests;  ///< null when active is empty
  /// The state in `active`; null when `active` is empty.
  std::shared_ptr<const Published> published;
  /// Called, from any thread and without a lock, for each corrupt chunk of `active`. `whole`: this
  /// version sends the chunk whole; otherwise the corrupt chunk was carried over.
  std::function<void(uint32_t chunk, bool whole)> corrupt;
};

class DiffBase {
 public:
  /// `halves` outlives this.
  explicit DiffBase(const DiffHalves& halves) : in_(halves) {}

  bool empty() const { return in_.active.empty(); }
  /// The chunk's bytes in the active half. REQUIRES: not empty, as below.
  Bytes before(uint32_t i) const {
    const Chunk& chunk = (*in_.chunks)[i];
    return in_.active.subspan(chunk.offset, chunk.bytes);
  }
  /// The chunk's bytes in the inactive half.
  MutableBytes now(uint32_t i) const {
    const Chunk& chunk = (*in_.chunks)[i];
    return in_.inactive.subspan(chunk.offset, chunk.bytes);
  }
  uint64_t digest(uint32_t i) const { return (*in_.active_digests)[i]; }

  bool IsCorrupt(uint32_t i) const {
    return in_.published != nullptr && in_.published->damaged[i] != 0;
  }
  /// Marks a chunk of the active half, unless it is known to be corrupt, so that it is neither sent
  /// nor a base.
  void MarkCorrupt(uint32_t i, bool whole);
  /// Copies the chunk to the inactive half, unless its bytes may be and are there. Returns false,
  /// and marks the chunk, if the active half's bytes are corrupt.
  bool CopyOver(uint32_t i, bool may_be_there);

 private:
  /// Whether the inactive half may still have the chunk's bytes, since the last version did not
  /// change the chunk.
  bool MayHaveBytes(uint32_t i) const;

  const DiffHalves& in_;
};

}  // namespace deltawire::sender
