// Counts of the bytes that a copy into a tensor writes in each chunk. Ranks report them to the
// agent, which diffs a chunk as soon as all its bytes are counted. They are exact for boxes and
// strided copies: if ranks' parts tile a tensor, the counts add up to the chunks' sizes.
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

  /// Returns the bytes that `copy` writes. REQUIRES: its destination strides are positive.
  static Destination Of(const kernels::StridedCopy& copy);
  /// Returns a block of `shape` elements at `start` in a row-major tensor; empty `start`: at its
  /// first element.
  static Destination OfBlock(std::span<const uint64_t> tensor, unsigned element_bytes,
                             std::span<const uint64_t> start, std::span<const uint64_t> shape);

  uint64_t bytes() const;
  /// Returns how many of its bytes have an offset below `limit`.
  uint64_t BytesBelow(uint64_t limit) const;

 private:
  void Tidy();
};

struct WrittenBytes {
  uint32_t chunk = 0;
  uint32_t bytes = 0;
};

/// Returns the bytes that `to` writes in each chunk of tensor `t`, chunks rising. Untouched chunks
/// are left out.
std::vector<WrittenBytes> CountWrittenBytes(const ChunkTable& chunks, uint32_t t,
                                            const Destination& to);

}  // namespace deltawire
