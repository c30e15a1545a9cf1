// The chunk table: a layout cut into chunks of at most kChunkBytes, none across two tensors. Chunk
// i is the unit of diffing, sending, checking, applying and resuming. Immutable; 24 bytes per
// chunk.
#pragma once

#include <cstdint>
#include <vector>

#include "common/layout/layout.h"

namespace deltawire {

/// Part of the wire contract: both ends must cut tensors alike (docs/wire_format.md, "Chunks").
#ifdef DELTAWIRE_SIMULATION  // many chunks in tiny models (tests/simulation)
inline constexpr uint64_t kChunkBytes = uint64_t{1} << 10;
#else
inline constexpr uint64_t kChunkBytes = uint64_t{2} << 20;
#endif

struct Chunk {
  uint64_t offset = 0;  ///< bytes from the start of the data section
  uint32_t bytes = 0;   ///< > 0; a multiple of width
  uint32_t tensor = 0;  ///< index into tensors_meta
  uint8_t width = 1;    ///< bytes per element
};

class ChunkTable {
 public:
  /// A tensor of 0 bytes has no chunk. Returns kInvalidArgument beyond 2^32 - 1 chunks.
  static StatusOr<ChunkTable> Create(const Layout& layout);

  uint32_t size() const { return static_cast<uint32_t>(chunks_.size()); }
  const Chunk& operator[](uint32_t i) const { return chunks_[i]; }
  size_t tensors() const { return first_.size() - 1; }
  /// Tensor `t` has the chunks [first_of_tensor(t), end_of_tensor(t)).
  uint32_t first_of_tensor(size_t t) const { return first_[t]; }
  uint32_t end_of_tensor(size_t t) const { return first_[t + 1]; }

 private:
  std::vector<Chunk> chunks_;
  std::vector<uint32_t> first_;  // size: tensors + 1
};

}  // namespace deltawire
