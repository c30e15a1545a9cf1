// The Team of team.h on a GPU: a thread block of kLanes threads, whose shared memory is `Scratch`.
// All threads must call each method.
#pragma once

#include <cstring>

#include "kernels/cuda/team.h"

namespace deltawire::kernels::gpu {

class BlockTeam {
 public:
  static constexpr uint32_t kWarps = kLanes / 32;
  struct Scratch {
    alignas(16) uint32_t sums[kWarps][4];
  };
  template <typename T>
  struct PerLane {
    T v{};
    DW_HD T& operator[](uint32_t) { return v; }
  };

  __device__ __forceinline__ explicit BlockTeam(Scratch& scratch) : scratch_(scratch) {}

  template <typename F>
  DW_HD void Each(F f) {
#if defined(__CUDA_ARCH__)
    f(threadIdx.x);
    __syncthreads();
#endif
  }

  template <typename T>
  DW_HD T Share(const T& shared) {
    const T v = shared;
#if defined(__CUDA_ARCH__)
    __syncthreads();
#endif
    return v;
  }

  template <typename T>
  DW_HD T ExclusiveScan(PerLane<T>& values) {
    T total{};
#if defined(__CUDA_ARCH__)
    static_assert(sizeof(T) <= sizeof(scratch_.sums[0]) && sizeof(T) % 4 == 0);
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    T inclusive = values.v;
    for (uint32_t d = 1; d < 32; d *= 2) {
      const T left = Up(inclusive, d);
      if (lane >= d) inclusive = T::Combine(left, inclusive);
    }
    const T left = Up(inclusive, 1);
    if (lane == 31) *reinterpret_cast<T*>(scratch_.sums[warp]) = inclusive;
    __syncthreads();
    T base{};
    for (uint32_t w = 0; w < kWarps; ++w) {
      if (w == warp) base = total;
      total = T::Combine(total, *reinterpret_cast<const T*>(scratch_.sums[w]));
    }
    values.v = lane == 0 ? base : T::Combine(base, left);
    __syncthreads();
#endif
    return total;
  }

 private:
  /// Returns the value of `v` in the thread `delta` lanes below.
  template <typename T>
  static DW_HD T Up(const T& v, uint32_t delta) {
#if defined(__CUDA_ARCH__)
    uint32_t words[sizeof(T) / 4];
    memcpy(words, &v, sizeof(T));
    for (uint32_t& w : words) w = __shfl_up_sync(0xffffffff, w, delta);
    T up;
    memcpy(&up, words, sizeof(T));
    return up;
#else
    return v;
#endif
  }
  Scratch& scratch_;
};

}  // namespace deltawire::kernels::gpu
