// Conversions between bf16, fp16 and fp32, a run at a time; compiled once per target. The results
// equal those of kernels/float_bits.h bit for bit. Data may be unaligned. Runs at memory speed.
#include <cstring>

#include "hwy/highway.h"
#include "kernels/float_bits.h"
#include "kernels/kernels.h"

#if defined(DELTAWIRE_KERNELS_CPU_HIGHWAY_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_HIGHWAY_CONVERT_INL_H_
#undef DELTAWIRE_KERNELS_CPU_HIGHWAY_CONVERT_INL_H_
#else
#define DELTAWIRE_KERNELS_CPU_HIGHWAY_CONVERT_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR
using F32Tag = hn::ScalableTag<float>;
using U32Tag = hn::ScalableTag<uint32_t>;
using U16Tag = hn::ScalableTag<uint16_t>;
using HalfU16Tag = hn::Half<U16Tag>;
using U32 = hn::Vec<U32Tag>;
using U16 = hn::Vec<U16Tag>;

HWY_INLINE U32 MagnitudeOf(U32 f) { return hn::And(f, hn::Set(U32Tag(), ~kF32Sign)); }

/// Returns magnitude > limit, by lane. Compares signed numbers, which is faster on some targets;
/// magnitudes have no sign bit.
HWY_INLINE hn::Mask<U32Tag> Above(U32 magnitude, uint32_t limit) {
  const hn::RebindToSigned<U32Tag> ds;
  return hn::RebindMask(
      U32Tag(), hn::Gt(hn::BitCast(ds, magnitude), hn::Set(ds, static_cast<int32_t>(limit))));
}

HWY_INLINE U32 WidenF16(U32 v) {
  const U32Tag d;
  const F32Tag df;
  const hn::RebindToSigned<U32Tag> ds;
  const U32 rest = hn::And(v, hn::Set(d, 0x7fff));
  const U32 sign = hn::ShiftLeft<16>(hn::Sub(v, rest));
  const U32 shifted = hn::ShiftLeft<13>(rest);
  const U32 normal = hn::Add(shifted, hn::Set(d, (127 - 15) << 23));
  const U32 subnormal =
      hn::BitCast(d, hn::Mul(hn::ConvertTo(df, hn::BitCast(ds, rest)), hn::Set(df, 0x1p-24f)));
  const U32 special = hn::Or(shifted, hn::Set(d, kF32Infinity));
  const U32 quiet = hn::IfThenElseZero(Above(rest, 0x7c00), hn::Set(d, kF32Quiet));
  U32 f = hn::IfThenElse(Above(rest, 0x03ff), normal, subnormal);
  f = hn::IfThenElse(Above(rest, 0x7bff), hn::Or(special, quiet), f);
  return hn::Or(f, sign);
}

HWY_INLINE U32 NarrowToF16(U32 f) {
  const U32Tag d;
  const F32Tag df;
  const U32 rest = MagnitudeOf(f);
  const U32 sign = hn::ShiftRight<16>(hn::Xor(f, rest));
  const U32 odd = hn::And(hn::ShiftRight<13>(rest), hn::Set(d, 1));
  U32 normal = hn::Add(rest, hn::Add(odd, hn::Set(d, 0x0fff - ((127u - 15) << 23))));
  normal = hn::ShiftRight<13>(normal);
  // In [0.5, 1) the last place of an fp32 is worth the same as that of a subnormal fp16, so adding
  // 0.5 rounds to it.
  const auto half = hn::Set(df, 0.5f);
  const U32 subnormal =
      hn::Sub(hn::BitCast(d, hn::Add(hn::BitCast(df, rest), half)), hn::BitCast(d, half));
  const U32 nan = hn::Or(hn::Set(d, 0x7e00), hn::And(hn::ShiftRight<13>(rest), hn::Set(d, 0x01ff)));
  U32 v = hn::IfThenElse(Above(rest, 0x387fffff), normal, subnormal);
  v = hn::IfThenElse(Above(rest, 0x477fefff), hn::Set(d, 0x7c00), v);
  v = hn::IfThenElse(Above(rest, kF32Infinity), nan, v);
  return hn::Or(v, sign);
}

HWY_INLINE U32 NarrowToBF16(U32 f) {
  const U32Tag d;
  const U32 odd = hn::And(hn::ShiftRight<16>(f), hn::Set(d, 1));
  const U32 rounded = hn::Add(f, hn::Add(odd, hn::Set(d, 0x7fff)));
  const U32 quiet = hn::Or(f, hn::Set(d, kF32Quiet));
  return hn::ShiftRight<16>(hn::IfThenElse(Above(MagnitudeOf(f), kF32Infinity), quiet, rounded));
}

/// Converts two vectors' worth of fp32 lanes at a time.
template <Element kFrom, Element kTo>
class Converter {
 public:
  static constexpr size_t kFromWidth = WidthOf(kFrom), kToWidth = WidthOf(kTo);

  explicit Converter(int add) : adds_(add != 0), summand_(static_cast<float>(add)) {}

  static size_t Step() { return 2 * hn::Lanes(U32Tag()); }

  /// With `stream` the result bypasses the cache. REQUIRES then: `dst` is aligned to vectors.
  void Run(std::byte* dst, const std::byte* src, size_t elements, bool stream) const {
    if (adds_) return RunAs<true>(dst, src, elements, stream);
    RunAs<false>(dst, src, elements, stream);
  }

 private:
  template <bool kAdds>
  void RunAs(std::byte* dst, const std::byte* src, size_t elements, bool stream) const {
    const size_t step = Step();
    size_t i = 0;
    if (stream) {
      for (; i + step <= elements; i += step) {
        One<kAdds, true>(dst + i * kToWidth, src + i * kFromWidth);
      }
    } else {
      for (; i + step <= elements; i += step) {
        One<kAdds, false>(dst + i * kToWidth, src + i * kFromWidth);
      }
    }
    if (i == elements) return;
    // The rest does not fill a step and is converted in copies.
    std::byte in[2 * HWY_MAX_BYTES] = {};
    std::byte out[2 * HWY_MAX_BYTES];
    std::memcpy(in, src + i * kFromWidth, (elements - i) * kFromWidth);
    One<kAdds, false>(out, in);
    std::memcpy(dst + i * kToWidth, out, (elements - i) * kToWidth);
  }

  template <bool kAdds>
  HWY_INLINE U32 Sum(U32 f) const {
    if constexpr (!kAdds) return f;
    const U32Tag d;
    const F32Tag df;
    const U32 sum = hn::BitCast(d, hn::Add(hn::BitCast(df, f), hn::Set(df, summand_)));
    return hn::IfThenElse(Above(MagnitudeOf(f), kF32Infinity), hn::Or(f, hn::Set(d, kF32Quiet)),
                          sum);
  }

  HWY_INLINE static U32 Widen(hn::Vec<HalfU16Tag> v) {
    const U32 wide = hn::PromoteTo(U32Tag(), v);
    if constexpr (kFrom == Element::kBF16) return hn::ShiftLeft<16>(wide);
    return WidenF16(wide);
  }

  HWY_INLINE static hn::Vec<HalfU16Tag> Narrow(U32 f) {
    const U32 v = kTo == Element::kBF16 ? NarrowToBF16(f) : NarrowToF16(f);
    return hn::TruncateTo(HalfU16Tag(), v);
  }

  template <bool kAdds, bool kStream>
  HWY_INLINE void One(std::byte* dst, const std::byte* src) const {
    const U32Tag d32;
    const U16Tag d16;
    const HalfU16Tag half;
    U32 a, b;
    if constexpr (kFrom == Element::kF32) {
      const auto* p = reinterpret_cast<const uint32_t*>(src);
      a = hn::LoadU(d32, p);
      b = hn::LoadU(d32, p + hn::Lanes(d32));
    } else {
      const U16 v = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(src));
      a = Widen(hn::LowerHalf(half, v));
      b = Widen(hn::UpperHalf(half, v));
    }
    a = Sum<kAdds>(a);
    b = Sum<kAdds>(b);
    if constexpr (kTo == Element::kF32) {
      auto* p = reinterpret_cast<uint32_t*>(dst);
      Put<kStream>(d32, a, p);
      Put<kStream>(d32, b, p + hn::Lanes(d32));
    } else {
      Put<kStream>(d16, hn::Combine(d16, Narrow(b), Narrow(a)), reinterpret_cast<uint16_t*>(dst));
    }
  }

  template <bool kStream, class D, class T>
  HWY_INLINE static void Put(D d, hn::Vec<D> v, T* to) {
    if constexpr (kStream) {
      hn::Stream(v, d, to);
    } else {
      hn::StoreU(v, d, to);
    }
  }

  bool adds_;
  float summand_;
};
#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAWIRE_KERNELS_CPU_HIGHWAY_CONVERT_INL_H_
