// The codec dense (docs/delta_format.md, "dense"): every difference of a chunk as byte planes,
// compressed by zstd. The sender makes it from a fast payload, and the receiver turns it back. Each
// thread keeps a zstd context and two chunks' worth of memory. Costs about ten passes over the
// chunk.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/kernels.h"

namespace deltawire {

/// Encodes the differences of `fast`, a valid payload for `raw_bytes` in elements of `width`.
/// Returns the payload's size, or 0 when it would not be smaller than `limit` bytes. `out` grows as
/// needed; its bytes beyond the payload are undefined.
size_t DenseEncode(const kernels::Backend& backend, kernels::Bytes fast, size_t raw_bytes,
                   unsigned width, size_t limit, std::vector<std::byte>& out);

/// Checks all of `dense` and writes the equivalent fast payload to `out`, its size to `*bytes`.
/// REQUIRES: raw_bytes <= kMaxChunkBytes, a multiple of width; out.size() >=
/// MaxEncodedBytes(raw_bytes, width).
kernels::DecodeStatus DenseDecode(const kernels::Backend& backend, kernels::Bytes dense,
                                  size_t raw_bytes, unsigned width, kernels::MutableBytes out,
                                  size_t* bytes);

}  // namespace deltawire
