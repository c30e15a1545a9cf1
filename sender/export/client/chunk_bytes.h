// How many bytes of each chunk a copy into a tensor writes: what ranks tell the agent, so that it
// can diff a chunk as soon as all of it is there. Exact for boxes and for strided copies; the sums
// over ranks whose parts tile a tensor are its chunks' sizes. Pure.
// Threads: a ChunkBytes has one user at a time. Cost: some multiplications for each chunk touched.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/layout/chunks.h"
#include "kernels/kernels.h"

namespace deltawire {

/// A dimension of a copy's destination: `count` steps of `stride` bytes. stride > 0.
struct DestinationDim {
  uint64_t count = 1;
  uint64_t stride = 1;
};

/// Runs of `run_bytes` at `offset` plus every combination of steps. No two of them overlap.
struct Destination {
  uint64_t offset = 0;
  uint64_t run_bytes = 0;
  std::vector<DestinationDim> dims;

  /// Where a copy to HF writes. REQUIRES: its destination strides are positive.
  static Destination Of(const kernels::StridedCopy& copy);
  /// A block of `shape` elements at `start` in a row-major tensor. `start` empty: at its first.
  static Destination OfBlock(std::span<const uint64_t> tensor, unsigned element_bytes,
                             std::span<const uint64_t> start, std::span<const uint64_t> shape);

  uint64_t bytes() const;
  /// Those of its bytes that lie below `limit`.
  uint64_t BytesBelow(uint64_t limit) const;

 private:
  void Tidy();
};

/// Bytes of some chunks.
struct ChunkBytes {
  uint32_t chunk = 0;
  uint32_t bytes = 0;
};

/// What `to` writes of tensor `t`, by chunk, rising; chunks that it does not touch are left out.
std::vector<ChunkBytes> CountChunkBytes(const ChunkTable& chunks, uint32_t t,
                                        const Destination& to);

}  // namespace deltawire
