// How a block's elements are shared out among the lanes that work on it, and what lanes sum up.
// A Team has Each(f): f(lane) for every lane, then a barrier; PerLane<T>: a value a lane;
// ExclusiveScan(values): each becomes the Combine of those before it, returns that of all; and
// Share(x): reads what a phase has left in shared memory, safe against the next phase.
// Shared memory is written in Each only, and never read there by another lane in the same phase.
#pragma once

#include "kernels/cuda/elements.h"

namespace deltawire::kernels::gpu {

inline constexpr uint32_t kLanes = 512;
inline constexpr uint32_t kMapWords = kBlock / 32;  ///< of a bitmap over a block
inline constexpr uint32_t kWordsPerLane = kMapWords / kLanes;
inline constexpr uint32_t kPerLane = kBlock / kLanes;  ///< elements
static_assert(kWordsPerLane * kLanes == kMapWords);

/// A stretch of elements as the stretches behind it need to know it. Combine is associative.
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
