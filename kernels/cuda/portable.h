// Bit counts and atomics for device code and its emulation on the CPU. Functions marked DW_HD run
// on both. On the CPU the "atomics" are plain operations, because there the lanes of a team run one
// after the other.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/host_device.h"

namespace deltawire::kernels::gpu {

DW_HD uint32_t PopCount(uint32_t v) {
#if defined(__CUDA_ARCH__)
  return static_cast<uint32_t>(__popc(v));
#else
  return static_cast<uint32_t>(__builtin_popcount(v));
#endif
}

/// Returns the index of the lowest set bit. REQUIRES: v != 0.
DW_HD uint32_t LowestBit(uint32_t v) {
#if defined(__CUDA_ARCH__)
  return static_cast<uint32_t>(__ffs(static_cast<int>(v))) - 1;
#else
  return static_cast<uint32_t>(__builtin_ctz(v));
#endif
}

/// Returns the format's bits(v): bits(0) = 0, bits(255) = 8.
DW_HD uint32_t BitLength(uint64_t v) {
#if defined(__CUDA_ARCH__)
  return 64 - static_cast<uint32_t>(__clzll(static_cast<long long>(v)));
#else
  return v == 0 ? 0 : 64 - static_cast<uint32_t>(__builtin_clzll(v));
#endif
}

DW_HD void AtomicOr(uint32_t* word, uint32_t bits) {
#if defined(__CUDA_ARCH__)
  atomicOr(word, bits);
#else
  *word |= bits;
#endif
}

DW_HD void AtomicAdd(uint32_t* word, uint32_t v) {
#if defined(__CUDA_ARCH__)
  atomicAdd(word, v);
#else
  *word += v;
#endif
}

template <typename T>
DW_HD T Least(T a, T b) {
  return b < a ? b : a;
}

}  // namespace deltawire::kernels::gpu
