// One strided copy cut into units of up to 16 bytes that a thread moves on its own; device and CPU.
// Pure. REQUIRES of the copy: as kernels.h says; and that it writes no byte twice.
#pragma once

#include "kernels/cuda/portable.h"

namespace deltawire::kernels::gpu {

struct PlacePlan {
  static constexpr uint32_t kMaxDims = 6;
  int64_t src = 0, dst = 0;   ///< bytes
  uint64_t counts[kMaxDims];  ///< outermost first; missing ones are 1
  int64_t src_strides[kMaxDims];
  int64_t dst_strides[kMaxDims];
  uint64_t units_per_run = 0;
  uint32_t unit = 1;   ///< bytes: 1, 2, 4, 8 or 16
  uint64_t units = 0;  ///< in all
};

struct PlaceStep {
  int64_t src, dst;  ///< offsets in bytes
};

/// Where unit `i` comes from and goes to.
DW_HD PlaceStep PlaceUnit(const PlacePlan& plan, uint64_t i) {
  uint64_t run = i / plan.units_per_run;
  const auto within = static_cast<int64_t>((i - run * plan.units_per_run) * plan.unit);
  PlaceStep step{plan.src + within, plan.dst + within};
  for (uint32_t d = PlacePlan::kMaxDims; d-- > 0;) {
    if (plan.counts[d] == 1) continue;
    const uint64_t next = run / plan.counts[d];
    const auto at = static_cast<int64_t>(run - next * plan.counts[d]);
    step.src += at * plan.src_strides[d];
    step.dst += at * plan.dst_strides[d];
    run = next;
  }
  return step;
}

}  // namespace deltawire::kernels::gpu
