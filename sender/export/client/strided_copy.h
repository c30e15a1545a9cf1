// Copies an n-dimensional block of elements between two memories of any strides, on several
// threads: contiguous runs by memcpy, a transposed source in tiles that stay in cache, without a
// temporary. Owner: none; a free function. Threads: any. Cost: one read and one write of the block.
// Errors: none of the copy.
#pragma once

#include <cstdint>
#include <span>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "kernels/kernels.h"

namespace deltawire {

/// Strides are in bytes, of any sign, one per dimension of `shape`; no dimensions: one element.
/// With a null `pool`, and for small blocks, the caller alone copies.
/// REQUIRES: element is 1, 2, 4, 8 or 16; every element addressed lies in its memory; the elements
/// of `to` overlap neither one another nor those of `from`.
void CopyStrided(std::byte* to, std::span<const int64_t> to_strides, const std::byte* from,
                 std::span<const int64_t> from_strides, std::span<const uint64_t> shape,
                 unsigned element, ThreadPool* pool);

/// The same copy for a kernel that runs it elsewhere, and the memory from its lowest source address
/// to its highest. REQUIRES: no dimension of `shape` is 0.
struct BlockCopy {
  kernels::StridedCopy copy;  ///< from `from`, to the memory that begins with the first element
  Bytes from;
};
/// kUnimplemented: it has more dimensions than a StridedCopy, neighbours that lie together merged.
StatusOr<BlockCopy> BlockCopyOf(std::span<const int64_t> to_strides, const std::byte* from,
                                std::span<const int64_t> from_strides,
                                std::span<const uint64_t> shape, unsigned element);

}  // namespace deltawire
