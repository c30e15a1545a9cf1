// A StridedCopy as device code runs it: the largest unit that run, strides and addresses allow.
// Pure; on the CPU.
#pragma once

#include <bit>

#include "kernels/cuda/place.h"
#include "kernels/kernels.h"

namespace deltawire::kernels::gpu {

/// `src_address` and `dst_address` are the buffers' addresses, which decide alignment as well.
inline PlacePlan PlanPlace(const StridedCopy& copy, uint64_t src_address, uint64_t dst_address) {
  static_assert(PlacePlan::kMaxDims == StridedCopy::kMaxDims);
  PlacePlan plan;
  plan.src = copy.src_offset;
  plan.dst = copy.dst_offset;
  uint64_t all = 16 | copy.run_bytes | (src_address + static_cast<uint64_t>(copy.src_offset)) |
                 (dst_address + static_cast<uint64_t>(copy.dst_offset));
  uint64_t runs = 1;
  for (size_t d = 0; d < PlacePlan::kMaxDims; ++d) {
    const bool used = d < copy.dims;
    plan.counts[d] = used ? copy.counts[d] : 1;
    plan.src_strides[d] = used ? copy.src_strides[d] : 0;
    plan.dst_strides[d] = used ? copy.dst_strides[d] : 0;
    runs *= plan.counts[d];
    if (plan.counts[d] > 1) {
      all |=
          static_cast<uint64_t>(plan.src_strides[d]) | static_cast<uint64_t>(plan.dst_strides[d]);
    }
  }
  plan.unit = uint32_t{1} << std::countr_zero(all);
  plan.units_per_run = copy.run_bytes / plan.unit;
  plan.units = runs * plan.units_per_run;
  return plan;
}

}  // namespace deltawire::kernels::gpu
