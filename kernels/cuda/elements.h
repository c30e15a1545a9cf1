// Elements, their differences, and the effect of a change on the digest; for device and CPU.
// REQUIRES: data starts at a multiple of 16 bytes (Slab aligns it).
#pragma once

#include "kernels/cuda/bits.h"
#include "kernels/format.h"

namespace deltawire::kernels::gpu {

inline constexpr uint32_t kBlock = kBlockElements;  ///< in 32 bits, as device code counts
inline constexpr uint32_t kAlign = 16;

/// The digest key, in memory that device code can read.
struct KeyView {
  const uint64_t* words = nullptr;        ///< kDigestWords
  const uint64_t* multipliers = nullptr;  ///< kDigestBlocks
};

/// Returns the digest's growth when the element at byte `at` of the chunk changes from `o` to `n`.
template <typename T>
DW_HD uint64_t DigestStep(const KeyView& key, uint32_t at, T o, T n) {
  const uint64_t* k = key.words + ((at >> 2) & (kDigestWords - 1));
  uint64_t grown;
  if constexpr (sizeof(T) == 8) {
    const uint64_t low = uint64_t{static_cast<uint32_t>(n)} - static_cast<uint32_t>(o);
    const uint64_t high = (n >> 32) - (o >> 32);
    grown = k[0] * low + k[1] * high;
  } else {
    grown = k[0] * ((uint64_t{n} - uint64_t{o}) << 8 * (at & 3));
  }
  return key.multipliers[at / kDigestBlockBytes] * grown;
}

/// Returns a number whose bit i is set if element i of the eight in `x` (old xor new) is not zero.
template <uint32_t kWidth>
DW_HD uint32_t NonzeroOfEight(const uint32_t (&x)[2 * kWidth]) {
  uint32_t mask = 0;
  if constexpr (kWidth == 1) {
    for (uint32_t i = 0; i < 8; ++i) {
      mask |= static_cast<uint32_t>(((x[i / 4] >> 8 * (i % 4)) & 0xff) != 0) << i;
    }
  } else if constexpr (kWidth == 2) {
    for (uint32_t i = 0; i < 4; ++i) {
      mask |= static_cast<uint32_t>((x[i] & 0xffff) != 0) << 2 * i;
      mask |= static_cast<uint32_t>((x[i] >> 16) != 0) << (2 * i + 1);
    }
  } else if constexpr (kWidth == 4) {
    for (uint32_t i = 0; i < 8; ++i) mask |= static_cast<uint32_t>(x[i] != 0) << i;
  } else {
    for (uint32_t i = 0; i < 8; ++i) {
      mask |= static_cast<uint32_t>((x[2 * i] | x[2 * i + 1]) != 0) << i;
    }
  }
  return mask;
}

/// Loads eight elements as words. REQUIRES: they start at a multiple of eight elements.
template <uint32_t kWidth>
DW_HD void LoadEight(const uint8_t* p, uint32_t (&words)[2 * kWidth]) {
#if defined(__CUDA_ARCH__)
  if constexpr (kWidth == 1) {
    const uint2 v = __ldg(reinterpret_cast<const uint2*>(p));
    words[0] = v.x, words[1] = v.y;
  } else {
#pragma unroll
    for (uint32_t i = 0; i < kWidth / 2; ++i) {
      const uint4 v = __ldg(reinterpret_cast<const uint4*>(p) + i);
      words[4 * i] = v.x, words[4 * i + 1] = v.y;
      words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
    }
  }
#else
  for (uint32_t i = 0; i < 2 * kWidth; ++i) words[i] = reinterpret_cast<const uint32_t*>(p)[i];
#endif
}

/// Returns a mask of the elements [first, first + 8) of a block of `m` elements that differ.
/// REQUIRES: first % 8 == 0.
template <typename T>
DW_HD uint32_t ChangedOfEight(const T* o, const T* n, uint32_t first, uint32_t m) {
  constexpr uint32_t kWidth = sizeof(T);
  if (first + 8 <= m) {
    uint32_t x[2 * kWidth], y[2 * kWidth];
    LoadEight<kWidth>(reinterpret_cast<const uint8_t*>(o + first), x);
    LoadEight<kWidth>(reinterpret_cast<const uint8_t*>(n + first), y);
    for (uint32_t i = 0; i < 2 * kWidth; ++i) x[i] ^= y[i];
    return NonzeroOfEight<kWidth>(x);
  }
  uint32_t mask = 0;
  for (uint32_t i = first; i < m; ++i) {
    mask |= static_cast<uint32_t>(o[i] != n[i]) << (i - first);
  }
  return mask;
}

}  // namespace deltawire::kernels::gpu
