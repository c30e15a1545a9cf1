// The codec dense (docs/delta_format.md, "dense"): every difference of a chunk, byte planes, zstd.
// Made from a fast payload for the way and turned back into it on arrival. Pure functions; each
// thread keeps a zstd context and two chunks' worth of memory. Cost: about ten passes over the
// chunk. Errors: DecodeStatus of the decoder; an encoder's input must be a valid fast payload.
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

/// The fast payload of a dense one, wholly checked. REQUIRES: raw_bytes <= kMaxChunkBytes, a
/// multiple of width; out.size() >= MaxEncodedBytes(raw_bytes, width). *bytes = its size.
kernels::DecodeStatus DenseDecode(const kernels::Backend& backend, kernels::Bytes dense,
                                  size_t raw_bytes, unsigned width, kernels::MutableBytes out,
                                  size_t* bytes);

}  // namespace deltawire
