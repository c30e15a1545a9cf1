// The digest of whole chunks, for device and CPU. A lane reads its key words once for all blocks of
// the chunk. The chunk's digest is the sum over all lanes of all slices.
#pragma once

#include "kernels/cuda/elements.h"

namespace deltawire::kernels::gpu {

/// Slices of a chunk; each has every kSlices-th block. Chunks of 2 MiB in a slab of 32 MiB make 512
/// thread blocks, of which an H100 runs 528 at a time.
inline constexpr uint32_t kSlices = 32;
/// The number of a lane's loads in flight together.
inline constexpr uint32_t kDigestLoads = 4;
inline constexpr uint32_t kDigestLanes = kDigestBlockBytes / 16;

struct Quad {
  uint32_t w[4];
};

/// Loads 16 bytes at a multiple of 16.
DW_HD Quad LoadQuad(const uint8_t* data) {
#if defined(__CUDA_ARCH__)
  const uint4 v = __ldg(reinterpret_cast<const uint4*>(data));
  return {{v.x, v.y, v.z, v.w}};
#else
  const auto* w = reinterpret_cast<const uint32_t*>(data);
  return {{w[0], w[1], w[2], w[3]}};
#endif
}

/// Loads the last `bytes` < 16 of a chunk; those after them count as zero.
DW_HD Quad LoadTail(const uint8_t* data, uint32_t bytes) {
  Quad q = {};
  // No computed index: it would move the array to a thread's slow memory.
  for (uint32_t i = 0; i < 4; ++i) {
    for (uint32_t b = 0; b < 4; ++b) {
      if (4 * i + b < bytes) q.w[i] |= static_cast<uint32_t>(data[4 * i + b]) << 8 * b;
    }
  }
  return q;
}

DW_HD uint64_t DigestQuad(const uint64_t (&words)[4], const Quad& v, uint64_t multiplier) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < 4; ++i) sum += words[i] * v.w[i];
  return multiplier * sum;
}

/// REQUIRES: data starts at a multiple of 16.
DW_HD uint64_t DigestLane(const uint8_t* data, uint32_t bytes, const KeyView& key, uint32_t slice,
                          uint32_t lane) {
  constexpr uint32_t kStep = kSlices * kDigestBlockBytes;
  uint32_t block = slice, at = block * kDigestBlockBytes + lane * 16;
  if (at >= bytes) return 0;
  uint64_t words[4];
  for (uint32_t i = 0; i < 4; ++i) words[i] = key.words[lane * 4 + i];
  uint64_t digest = 0;
  for (; at + (kDigestLoads - 1) * kStep + 16 <= bytes; at += kDigestLoads * kStep) {
    Quad v[kDigestLoads];
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (uint32_t i = 0; i < kDigestLoads; ++i) v[i] = LoadQuad(data + at + i * kStep);
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (uint32_t i = 0; i < kDigestLoads; ++i, block += kSlices) {
      digest += DigestQuad(words, v[i], key.multipliers[block]);
    }
  }
  for (; at + 16 <= bytes; at += kStep, block += kSlices) {
    digest += DigestQuad(words, LoadQuad(data + at), key.multipliers[block]);
  }
  if (at < bytes)
    digest += DigestQuad(words, LoadTail(data + at, bytes - at), key.multipliers[block]);
  return digest;
}

}  // namespace deltawire::kernels::gpu
