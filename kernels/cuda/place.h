// One strided copy cut into units that a thread moves on its own, up to 16 bytes, or converts, one
// element; device and CPU.
// Pure. REQUIRES of the copy: as kernels.h says; and that it writes no byte twice.
#pragma once

#include "kernels/cuda/portable.h"
#include "kernels/float_bits.h"

namespace deltawire::kernels::gpu {

/// The Elements of kernels.h, by the same numbers.
enum class Number : uint8_t { kNone = 0, kBF16 = 1, kF16 = 2, kF32 = 3 };

struct PlacePlan {
  static constexpr uint32_t kMaxDims = 6;
  int64_t src = 0, dst = 0;   ///< bytes
  uint64_t counts[kMaxDims];  ///< outermost first; missing ones are 1
  int64_t src_strides[kMaxDims];
  int64_t dst_strides[kMaxDims];
  uint64_t units_per_run = 0;
  uint32_t unit = 1;                                ///< bytes of the source: 1, 2, 4, 8 or 16
  uint32_t dst_unit = 1;                            ///< the same unless converted
  uint64_t units = 0;                               ///< in all
  Number from = Number::kNone, to = Number::kNone;  ///< kNone: units only move
  bool aligned = true;                              ///< each unit to its size, on its side
  int32_t add = 0;
};

struct PlaceStep {
  int64_t src, dst;  ///< offsets in bytes
};

/// Where unit `i` comes from and goes to.
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

/// A T from or to any address.
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

/// Converts one unit of a plan whose `from` is a number.
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
