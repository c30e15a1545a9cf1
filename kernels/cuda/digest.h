// The digest of whole chunks, distributed so that a lane reads its key words once for all blocks of
// the chunk; device and CPU. Pure; the sum over all lanes of all slices is the chunk's digest.
#pragma once

#include "kernels/cuda/elements.h"

namespace deltawire::kernels::gpu {

inline constexpr uint32_t kSlices = 8;  ///< slices of a chunk; each has every kSlices-th block
inline constexpr uint32_t kDigestLanes = kDigestBlockBytes / 16;

struct Quad {
  uint32_t w[4];
};

/// The 16 bytes from `at` on; bytes from `bytes` on count as zero.
DW_HD Quad LoadQuad(const uint8_t* data, uint32_t at, uint32_t bytes) {
  Quad q = {};
  if (at + 16 <= bytes) {
#if defined(__CUDA_ARCH__)
    const uint4 v = __ldg(reinterpret_cast<const uint4*>(data + at));
    q.w[0] = v.x, q.w[1] = v.y, q.w[2] = v.z, q.w[3] = v.w;
#else
    for (uint32_t i = 0; i < 4; ++i) q.w[i] = reinterpret_cast<const uint32_t*>(data + at)[i];
#endif
    return q;
  }
  for (uint32_t i = at; i < bytes; ++i) {
    q.w[(i - at) / 4] |= static_cast<uint32_t>(data[i]) << 8 * (i % 4);
  }
  return q;
}

/// REQUIRES: data starts at a multiple of 16.
DW_HD uint64_t DigestLane(const uint8_t* data, uint32_t bytes, const KeyView& key, uint32_t slice,
                          uint32_t lane) {
  uint64_t words[4];
  for (uint32_t i = 0; i < 4; ++i) words[i] = key.words[lane * 4 + i];
  uint64_t digest = 0;
  for (uint32_t block = slice; block * kDigestBlockBytes + lane * 16 < bytes; block += kSlices) {
    const Quad v = LoadQuad(data, block * kDigestBlockBytes + lane * 16, bytes);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < 4; ++i) sum += words[i] * v.w[i];
    digest += key.multipliers[block] * sum;
  }
  return digest;
}

}  // namespace deltawire::kernels::gpu
