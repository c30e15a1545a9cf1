// A multi-threaded copy of an n-dimensional block of elements between two memories of any strides.
// Contiguous runs use memcpy; a transposed source is copied in tiles that stay in cache, without a
// temporary. It reads and writes the block once.
#pragma once

#include <cstdint>
#include <span>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "kernels/kernels.h"

namespace deltawire {

/// Strides are in bytes, of any sign, one per dimension of `shape`; no dimensions means one
/// element. With a null `pool`, and for small blocks, only the caller's thread copies. REQUIRES:
/// element is 1, 2, 4, 8 or 16; every element addressed lies in its memory; the elements of `to`
/// overlap neither one another nor those of `from`.
void CopyStrided(std::byte* to, std::span<const int64_t> to_strides, const std::byte* from,
                 std::span<const int64_t> from_strides, std::span<const uint64_t> shape,
                 unsigned element, ThreadPool* pool);

/// The same copy for a kernel that runs it elsewhere, and the source memory from its lowest to its
/// highest address. REQUIRES: no dimension of `shape` is 0.
struct BlockCopy {
  kernels::StridedCopy copy;  ///< from `from`, to the memory that begins with the first element
  Bytes from;
};
/// kUnimplemented: even with adjacent dimensions merged, it has more of them than a StridedCopy.
StatusOr<BlockCopy> BlockCopyOf(std::span<const int64_t> to_strides, const std::byte* from,
                                std::span<const int64_t> from_strides,
                                std::span<const uint64_t> shape, unsigned element);

}  // namespace deltawire
