// One strided copy, cut into units for one thread each: up to 16 bytes to move, or one element to
// convert; for device and CPU. Long runs that a tensor of odd size has shifted are cut where the
// destination is aligned. REQUIRES of the copy: as kernels.h, and it writes no byte twice.
#pragma once

#include "kernels/cuda/portable.h"
#include "kernels/float_bits.h"

namespace deltawire::kernels::gpu {

/// The values of Element in kernels.h, with the same numbers.
enum class Number : uint8_t { kNone = 0, kBF16 = 1, kF16 = 2, kF32 = 3 };

struct PlacePlan {
  static constexpr uint32_t kMaxDims = 6;
  int64_t src = 0, dst = 0;   ///< offsets in bytes
  uint64_t counts[kMaxDims];  ///< outermost first; 1 for unused dimensions
  int64_t src_strides[kMaxDims];
  int64_t dst_strides[kMaxDims];
  uint64_t units_per_run = 0;
  uint32_t unit = 1;                                ///< source bytes: 1, 2, 4, 8 or 16
  uint32_t dst_unit = 1;                            ///< destination bytes; `unit` unless converted
  uint64_t units = 0;                               ///< number of units of the whole copy
  Number from = Number::kNone, to = Number::kNone;  ///< kNone: units only move
  bool aligned = true;                              ///< every unit is aligned to its size
  /// The bytes of a run that is moved in pieces of 16 bytes, aligned at the destination, and
  /// shorter ones at its ends; 0: not moved so.
  uint64_t shifted_run = 0;
  int32_t add = 0;
};

struct PlaceStep {
  int64_t src, dst;  ///< offsets in bytes
};

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

/// A unit of a shifted run. A run has two units more than it may need, so `bytes` may be 0.
struct PlacePiece {
  int64_t src, dst;  ///< offsets in bytes
  uint32_t bytes;
};

/// `dst_address` is that of the destination's offset 0. REQUIRES: plan.shifted_run is not 0.
DW_HD PlacePiece PieceOf(const PlacePlan& plan, uint64_t i, uint64_t dst_address) {
  const uint64_t run = i / plan.units_per_run, k = i - run * plan.units_per_run;
  const PlaceStep step = PlaceUnit(plan, run * plan.units_per_run);
  const uint64_t ahead = (dst_address + static_cast<uint64_t>(step.dst)) % 16;
  const uint64_t first = k == 0 ? 0 : k * 16 - ahead;
  const uint64_t last = Least((k + 1) * 16 - ahead, plan.shifted_run);
  if (first >= last) return {0, 0, 0};
  const auto at = static_cast<int64_t>(first);
  return {step.src + at, step.dst + at, static_cast<uint32_t>(last - first)};
}

/// Returns word `i`, at a multiple of 4, of those that 16 bytes from `src` on touch.
DW_HD uint32_t WordOf(const uint8_t* src, uint32_t skew, uint32_t i) {
#if defined(__CUDA_ARCH__)
  return reinterpret_cast<const uint32_t*>(src - skew)[i];
#else
  uint32_t word = 0;  // without the neighbors' bytes, which may be unreadable
  for (uint32_t b = 0; b < 4; ++b) {
    const uint32_t at = 4 * i + b;
    if (at >= skew && at < skew + 16) word |= static_cast<uint32_t>(src[at - skew]) << 8 * b;
  }
  return word;
#endif
}

/// Moves 1 to 16 bytes; 16 go to an address that is a multiple of 16.
DW_HD void MovePiece(const uint8_t* src, uint8_t* dst, uint32_t bytes) {
  if (bytes < 16) {
    for (uint32_t i = 0; i < bytes; ++i) dst[i] = src[i];
    return;
  }
  const uint32_t skew = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(src) & 3);
  uint32_t out[4];
  uint64_t two = WordOf(src, skew, 0);
  for (uint32_t i = 0; i < 4; ++i) {
    if (i < 3 || skew != 0) two |= uint64_t{WordOf(src, skew, i + 1)} << 32;
    out[i] = static_cast<uint32_t>(two >> 8 * skew);
    two >>= 32;
  }
#if defined(__CUDA_ARCH__)
  *reinterpret_cast<uint4*>(dst) = make_uint4(out[0], out[1], out[2], out[3]);
#else
  memcpy(dst, out, sizeof out);
#endif
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
