// Counts how many bytes of each chunk a copy into a tensor writes. Ranks tell the agent, which
// diffs a chunk as soon as all its bytes are counted. Exact for boxes and strided copies: over
// ranks whose parts tile a tensor, the counts add up to the chunks' sizes. Owner: the caller; plain
// values. Threads: one per value. Cost: some multiplications per chunk touched. Errors: none.
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

/// Runs of `run_bytes`, one at `offset` plus each combination of steps. No two runs overlap.
struct Destination {
  uint64_t offset = 0;
  uint64_t run_bytes = 0;
  std::vector<DestinationDim> dims;

  /// The bytes that `copy` writes. REQUIRES: its destination strides are positive.
  static Destination Of(const kernels::StridedCopy& copy);
  /// A block of `shape` elements at `start` in a row-major tensor; empty `start`: at its first
  /// element.
  static Destination OfBlock(std::span<const uint64_t> tensor, unsigned element_bytes,
                             std::span<const uint64_t> start, std::span<const uint64_t> shape);

  uint64_t bytes() const;
  /// How many of its bytes have an offset below `limit`.
  uint64_t BytesBelow(uint64_t limit) const;

 private:
  void Tidy();
};

/// A number of bytes of one chunk.
struct WrittenBytes {
  uint32_t chunk = 0;
  uint32_t bytes = 0;
};

/// How many bytes `to` writes of each chunk of tensor `t`, chunks rising; untouched chunks are left
/// out.
std::vector<WrittenBytes> CountWrittenBytes(const ChunkTable& chunks, uint32_t t,
                                            const Destination& to);

}  // namespace deltawire
