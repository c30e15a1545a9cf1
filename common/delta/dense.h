// The codec dense (docs/delta_format.md, "dense"): every difference of a chunk, byte planes, zstd.
// The sender makes it from a fast payload, and the receiver turns it back into that payload. Pure
// functions; each thread keeps a zstd context and two chunks' worth of memory. Cost: about ten
// passes over the chunk. Errors: the decoder's DecodeStatus.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/kernels.h"

namespace deltawire {

/// Encodes the differences of `fast`, a valid payload for `raw_bytes` in elements of `width`.
/// Returns the payload's size; 0 when it would not be smaller than `limit` bytes.
/// `out` grows as needed; what it holds beyond the payload means nothing.
size_t DenseEncode(const kernels::Backend& backend, kernels::Bytes fast, size_t raw_bytes,
                   unsigned width, size_t limit, std::vector<std::byte>& out);

/// Checks `dense` wholly and writes the equivalent fast payload to `out`, its size to `*bytes`.
/// REQUIRES: raw_bytes <= kMaxChunkBytes, a multiple of width;
/// out.size() >= MaxEncodedBytes(raw_bytes, width).
kernels::DecodeStatus DenseDecode(const kernels::Backend& backend, kernels::Bytes dense,
                                  size_t raw_bytes, unsigned width, kernels::MutableBytes out,
                                  size_t* bytes);

}  // namespace deltawire
