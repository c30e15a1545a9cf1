// Copies an n-dimensional block of elements between two memories of any strides, on several
// threads. Pure function; owns nothing. Contiguous runs are memcpy'd, a transposed source goes in
// tiles that stay in cache. No temporary copy. Cost: one read and one write of the block.
#pragma once

#include <cstdint>
#include <span>

#include "common/base/bytes.h"
#include "common/base/thread_pool.h"

namespace deltawire {

/// Strides are in bytes, of any sign, one per dimension of `shape`; no dimensions: one element.
/// `pool` null: on the caller alone, as are small blocks.
/// REQUIRES: element is 1, 2, 4, 8 or 16; every element addressed lies in its memory; the elements
/// of `to` do not overlap one another, nor those of `from`.
void CopyStrided(std::byte* to, std::span<const int64_t> to_strides, const std::byte* from,
                 std::span<const int64_t> from_strides, std::span<const uint64_t> shape,
                 unsigned element, ThreadPool* pool);

}  // namespace deltawire
