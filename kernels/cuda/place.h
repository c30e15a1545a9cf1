// One strided copy, cut into units that one thread handles: up to 16 bytes to move, or one element
// to convert; device and CPU. Pure.
// REQUIRES of the copy: what kernels.h requires, and that it writes no byte twice.
#pragma once

#include "kernels/cuda/portable.h"
#include "kernels/float_bits.h"

namespace deltawire::kernels::gpu {

/// The values of Element in kernels.h, with the same numbers.
enum class Number : uint8_t { kNone = 0, kBF16 = 1, kF16 = 2, kF32 = 3 };

struct PlacePlan {
  static constexpr uint32_t kMaxDims = 6;
  int64_t src = 0, dst = 0;   ///< offsets in bytes
  uint64_t counts[kMaxDims];  ///< outermost first; 1 for dimensions that the copy lacks
  int64_t src_strides[kMaxDims];
  int64_t dst_strides[kMaxDims];
  uint64_t units_per_run = 0;
  uint32_t unit = 1;                                ///< source bytes: 1, 2, 4, 8 or 16
  uint32_t dst_unit = 1;                            ///< destination bytes; `unit` unless converted
  uint64_t units = 0;                               ///< number of units of the whole copy
  Number from = Number::kNone, to = Number::kNone;  ///< kNone: units only move
  bool aligned = true;                              ///< every unit is aligned to its size
  int32_t add = 0;
};

struct PlaceStep {
  int64_t src, dst;  ///< offsets in bytes
};

/// The source and destination offsets of unit `i`.
DW_HD PlaceStep PlaceUnit(const PlacePlan& plan, uint64_t i) {
  uint64_t run = i / plan.units_per_run;
  const auto within = static_cast<int64_t>(i - run * plan.units_per_run);
  PlaceStep step{plan.src + within * plan.unit, plan.dst + within * plan.dst_unit};
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

/// Load a T from, and store it to, any address; `aligned` promises that the address is aligned.
template <typename T>
DW_HD T LoadUnit(const uint8_t* p, bool aligned) {
  if (aligned) return *reinterpret_cast<const T*>(p);
  T v;
  memcpy(&v, p, sizeof(T));
  return v;
}
template <typename T>
DW_HD void StoreUnit(uint8_t* p, T v, bool aligned) {
  if (aligned) {
    *reinterpret_cast<T*>(p) = v;
  } else {
    memcpy(p, &v, sizeof(T));
  }
}

/// Converts one unit. REQUIRES: plan.from is not kNone.
DW_HD void ConvertUnit(const PlacePlan& plan, const uint8_t* src, uint8_t* dst) {
  uint32_t f;
  if (plan.from == Number::kF32) {
    f = LoadUnit<uint32_t>(src, plan.aligned);
  } else {
    const auto v = LoadUnit<uint16_t>(src, plan.aligned);
    f = plan.from == Number::kBF16 ? F32FromBF16(v) : F32FromF16(v);
  }
  if (plan.add != 0) f = F32Plus(f, static_cast<float>(plan.add));
  if (plan.to == Number::kF32) {
    StoreUnit<uint32_t>(dst, f, plan.aligned);
  } else {
    StoreUnit<uint16_t>(dst, plan.to == Number::kBF16 ? BF16FromF32(f) : F16FromF32(f),
                        plan.aligned);
  }
}

}  // namespace deltawire::kernels::gpu
