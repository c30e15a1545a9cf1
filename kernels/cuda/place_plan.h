// The conversion of a StridedCopy into the PlacePlan that device code runs, with the largest unit
// that run, strides and addresses allow. CPU only.
#pragma once

#include <bit>

#include "kernels/cuda/place.h"
#include "kernels/kernels.h"

namespace deltawire::kernels::gpu {

static_assert(static_cast<uint8_t>(Number::kBF16) == static_cast<uint8_t>(Element::kBF16) &&
              static_cast<uint8_t>(Number::kF16) == static_cast<uint8_t>(Element::kF16) &&
              static_cast<uint8_t>(Number::kF32) == static_cast<uint8_t>(Element::kF32));

/// Runs of at least kShiftedRun bytes with units of at most kShiftedUnit are cut by the
/// destination's address instead.
inline constexpr uint64_t kShiftedRun = 64, kShiftedUnit = 4;

/// Turns a plan that moves bytes into one that converts elements. `src_bits` and `dst_bits` are the
/// bitwise or of the address and all strides of a side, from which the alignment follows.
inline void PlanConversion(const StridedCopy& copy, const Convert& convert, uint64_t runs,
                           uint64_t src_bits, uint64_t dst_bits, PlacePlan* plan) {
  plan->from = static_cast<Number>(convert.from);
  plan->to = static_cast<Number>(convert.to);
  plan->add = convert.add;
  plan->unit = static_cast<uint32_t>(WidthOf(convert.from));
  plan->dst_unit = static_cast<uint32_t>(WidthOf(convert.to));
  plan->units_per_run = copy.run_bytes / plan->dst_unit;
  plan->units = runs * plan->units_per_run;
  plan->aligned = src_bits % plan->unit == 0 && dst_bits % plan->dst_unit == 0;
}

/// `src_address` and `dst_address` are the buffers' addresses, on which the alignment also depends.
inline PlacePlan PlanPlace(const StridedCopy& copy, const Convert& convert, uint64_t src_address,
                           uint64_t dst_address) {
  static_assert(PlacePlan::kMaxDims == StridedCopy::kMaxDims);
  PlacePlan plan;
  plan.src = copy.src_offset;
  plan.dst = copy.dst_offset;
  uint64_t src_bits = src_address + static_cast<uint64_t>(copy.src_offset);
  uint64_t dst_bits = dst_address + static_cast<uint64_t>(copy.dst_offset);
  uint64_t runs = 1;
  for (size_t d = 0; d < PlacePlan::kMaxDims; ++d) {
    const bool used = d < copy.dims;
    plan.counts[d] = used ? copy.counts[d] : 1;
    plan.src_strides[d] = used ? copy.src_strides[d] : 0;
    plan.dst_strides[d] = used ? copy.dst_strides[d] : 0;
    runs *= plan.counts[d];
    if (plan.counts[d] > 1) {
      src_bits |= static_cast<uint64_t>(plan.src_strides[d]);
      dst_bits |= static_cast<uint64_t>(plan.dst_strides[d]);
    }
  }
  if (!convert.moves_only()) {
    PlanConversion(copy, convert, runs, src_bits, dst_bits, &plan);
    return plan;
  }
  plan.unit = uint32_t{1} << std::countr_zero(16 | copy.run_bytes | src_bits | dst_bits);
  plan.dst_unit = plan.unit;
  plan.units_per_run = copy.run_bytes / plan.unit;
  if (plan.unit <= kShiftedUnit && copy.run_bytes >= kShiftedRun) {
    plan.unit = plan.dst_unit = 1;
    plan.shifted_run = copy.run_bytes;
    plan.units_per_run = copy.run_bytes / 16 + 2;
  }
  plan.units = runs * plan.units_per_run;
  return plan;
}

}  // namespace deltawire::kernels::gpu
