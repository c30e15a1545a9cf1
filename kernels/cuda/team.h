// The distribution of a block's elements over the lanes of a Team, which are a GPU's threads. A
// Team has Each(f), a phase: f(lane) for every lane, then a barrier; PerLane<T>, one value per
// lane; ExclusiveScan(values), which replaces each value by the Combine of all before it and
// returns that of all; Share(x), which reads x from shared memory before the next phase changes it.
// Shared memory is written only in Each; in that phase no other lane reads a lane's writes.
#pragma once

#include "kernels/cuda/elements.h"

namespace deltawire::kernels::gpu {

inline constexpr uint32_t kLanes = 512;
inline constexpr uint32_t kMapWords = kBlock / 32;  ///< words of a bitmap over a block
inline constexpr uint32_t kWordsPerLane = kMapWords / kLanes;
inline constexpr uint32_t kPerLane = kBlock / kLanes;  ///< elements per lane
static_assert(kWordsPerLane * kLanes == kMapWords);

/// A summary of a stretch of elements for the stretches after it. Combine is associative.
struct Stretch {
  uint32_t changed = 0;
  uint32_t large = 0;
  uint32_t tail_unchanged = 0;  ///< elements since the last change (all, if there is none)
  uint32_t tail_small = 0;      ///< changes since the last large one (all, if there is none)

  DW_HD static Stretch Combine(const Stretch& a, const Stretch& b) {
    Stretch s;
    s.changed = a.changed + b.changed;
    s.large = a.large + b.large;
    s.tail_unchanged = b.tail_unchanged + (b.changed == 0 ? a.tail_unchanged : 0);
    s.tail_small = b.tail_small + (b.large == 0 ? a.tail_small : 0);
    return s;
  }
};

struct SumU32 {
  uint32_t v = 0;
  DW_HD static SumU32 Combine(const SumU32& a, const SumU32& b) { return {a.v + b.v}; }
};

struct SumU64 {
  uint64_t v = 0;
  DW_HD static SumU64 Combine(const SumU64& a, const SumU64& b) { return {a.v + b.v}; }
};

}  // namespace deltawire::kernels::gpu
