// The tight codec's work on every element: classes, sums of their weights, counts; compiled once
// per target. Data may be unaligned. Costs 0.05 to 0.1 ns per element.
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/changes.h"
#include "kernels/cpu/highway/lanes-inl.h"
#include "kernels/cpu/highway/pack-inl.h"
#include "kernels/cpu/highway/sparse_reader-inl.h"
#include "kernels/cpu/tight.h"

#if defined(DELTAWIRE_KERNELS_CPU_HIGHWAY_CLASSES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_HIGHWAY_CLASSES_INL_H_
#undef DELTAWIRE_KERNELS_CPU_HIGHWAY_CLASSES_INL_H_
#else
#define DELTAWIRE_KERNELS_CPU_HIGHWAY_CLASSES_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR
/// Writes the classes of the first elements of two bytes, as many as whole vectors hold, and
/// returns their number. It packs the exponents first, so that the rest works on twice as many at a
/// time.
template <ClassFunction kFunction>
size_t PackedClasses(const uint8_t* data, size_t elements, unsigned base, uint8_t* classes) {
  constexpr ExponentField kField = FieldOf(kFunction);
  const hn::ScalableTag<uint8_t> d;
  const hn::Repartition<uint16_t, decltype(d)> d16;
  const size_t lanes = hn::Lanes(d);
  const auto mask = hn::Set(d, static_cast<uint8_t>(LowMask(kField.bits)));
  const auto lowest = hn::Set(d, static_cast<uint8_t>(base));
  const auto most = hn::Set(d, uint8_t{kClasses - 1});
  // Prefetch the old bytes. Beyond the chunk's end that is wasted, but harmless.
  constexpr size_t kAhead = 4096;
  size_t i = 0;
  for (; i + lanes <= elements; i += lanes) {
    const auto* from = reinterpret_cast<const uint16_t*>(data) + i;
    hwy::Prefetch(data + 2 * i + kAhead);
    hwy::Prefetch(data + 2 * i + kAhead + lanes);
    const auto low = hn::ShiftRight<int{kField.shift}>(hn::LoadU(d16, from));
    const auto high = hn::ShiftRight<int{kField.shift}>(hn::LoadU(d16, from + lanes / 2));
    const auto packed = hn::ConcatEven(d, hn::BitCast(d, high), hn::BitCast(d, low));
    const auto exponent = hn::And(packed, mask);
    hn::StoreU(hn::Min(hn::SaturatedSub(exponent, lowest), most), d, classes + i);
  }
  return i;
}
#endif

template <typename T, ClassFunction kFunction>
void ClassesAs(const uint8_t* data, size_t elements, unsigned base, uint8_t* classes) {
  constexpr ExponentField kField = FieldOf(kFunction);
  static_assert(kField.width == sizeof(T));
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(T) == 2) i = PackedClasses<kFunction>(data, elements, base, classes);
  using S = std::make_signed_t<T>;
  const hn::ScalableTag<T> d;
  const hn::RebindToSigned<decltype(d)> ds;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  const size_t lanes = hn::Lanes(d);
  const auto mask = hn::Set(d, static_cast<T>(LowMask(kField.bits)));
  const auto lowest = hn::Set(ds, static_cast<S>(base));
  for (; i + lanes <= elements; i += lanes) {
    const auto v = hn::LoadU(d, reinterpret_cast<const T*>(data) + i);
    const auto exponent = hn::BitCast(ds, hn::And(hn::ShiftRight<int{kField.shift}>(v), mask));
    const auto above = hn::Max(hn::Sub(exponent, lowest), hn::Zero(ds));
    const auto cls = hn::Min(above, hn::Set(ds, S{kClasses - 1}));
    if constexpr (sizeof(T) == 1) {
      hn::StoreU(hn::BitCast(d8, cls), d8, classes + i);
    } else {
      hn::StoreU(hn::DemoteTo(d8, cls), d8, classes + i);
    }
  }
#endif
  for (; i < elements; ++i) {
    const unsigned exponent = ExponentOf(LoadElement<T>(data, i), kFunction);
    classes[i] = static_cast<uint8_t>(ClassOfExponent(exponent, base));
  }
}

inline void Classes(const uint8_t* data, size_t elements, ClassFunction function, unsigned base,
                    uint8_t* classes) {
  switch (function) {
    case ClassFunction::kNone:
      std::memset(classes, 0, elements);
      return;
    case ClassFunction::kBF16:
      return ClassesAs<uint16_t, ClassFunction::kBF16>(data, elements, base, classes);
    case ClassFunction::kF16:
      return ClassesAs<uint16_t, ClassFunction::kF16>(data, elements, base, classes);
    case ClassFunction::kF32:
      return ClassesAs<uint32_t, ClassFunction::kF32>(data, elements, base, classes);
    case ClassFunction::kF8E4M3:
    case ClassFunction::kF8E5M2:
      // No exponent is above 31, so with such a base every class is 0. The vector code below cannot
      // be used: its signed lanes might not hold the base.
      if (base > 31) {
        std::memset(classes, 0, elements);
      } else if (function == ClassFunction::kF8E4M3) {
        ClassesAs<uint8_t, ClassFunction::kF8E4M3>(data, elements, base, classes);
      } else {
        ClassesAs<uint8_t, ClassFunction::kF8E5M2>(data, elements, base, classes);
      }
      return;
  }
}

#if HWY_TARGET <= HWY_AVX3
/// Returns the prefix sums of eight numbers.
HWY_INLINE __m512i RunningSums8(__m512i v) {
  const __m512i none = _mm512_setzero_si512();
  v = _mm512_add_epi64(v, _mm512_alignr_epi64(v, none, 7));
  v = _mm512_add_epi64(v, _mm512_alignr_epi64(v, none, 6));
  return _mm512_add_epi64(v, _mm512_alignr_epi64(v, none, 4));
}
#endif

template <bool kTotal>
void ClassSumsAs(const uint8_t* classes, size_t elements, const ClassWeights& weights,
                 uint64_t* sums, uint64_t* total) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  // A table look-up gives bytes, so the weights are looked up byte by byte.
  const hn::ScalableTag<uint8_t> d;
  const hn::Repartition<uint64_t, decltype(d)> d64;
  const size_t lanes = hn::Lanes(d);
  const auto t0 = hn::LoadDup128(d, weights.bytes[0]);
  const auto t1 = hn::LoadDup128(d, weights.bytes[1]);
  const auto t2 = hn::LoadDup128(d, weights.bytes[2]);
  const auto sums_of_8 = [&](const uint8_t* from) {
    const auto v = hn::LoadU(d, from);
    const auto s0 = hn::SumsOf8(hn::TableLookupBytes(t0, v));
    const auto s1 = hn::SumsOf8(hn::TableLookupBytes(t1, v));
    const auto s2 = hn::SumsOf8(hn::TableLookupBytes(t2, v));
    return hn::Add(hn::Add(s0, hn::ShiftLeft<8>(s1)), hn::ShiftLeft<16>(s2));
  };
  static_assert(kSumStep == 16);
  const auto sums_of_16 = [&](const uint8_t* from) {
    const auto low = sums_of_8(from), high = sums_of_8(from + lanes);
    return hn::Add(hn::ConcatEven(d64, high, low), hn::ConcatOdd(d64, high, low));
  };
#if HWY_TARGET <= HWY_AVX3
  if constexpr (kTotal) {
    __m512i before = _mm512_set1_epi64(static_cast<int64_t>(*total));
    for (; i + 2 * lanes <= elements; i += 2 * lanes) {
      const __m512i running = RunningSums8(sums_of_16(classes + i).raw);
      _mm512_storeu_si512(sums + i / kSumStep, _mm512_add_epi64(running, before));
      const __m512i last = _mm512_permutexvar_epi64(_mm512_set1_epi64(7), running);
      before = _mm512_add_epi64(before, last);
    }
    *total = static_cast<uint64_t>(_mm_cvtsi128_si64(_mm512_castsi512_si128(before)));
  }
#endif
  const size_t first = i;
  for (; i + 2 * lanes <= elements; i += 2 * lanes) {
    hn::StoreU(sums_of_16(classes + i), d64, sums + i / kSumStep);
  }
#else
  const size_t first = 0;
#endif
  for (; i + kSumStep <= elements; i += kSumStep) {
    uint64_t sum = 0;
    for (size_t j = 0; j < kSumStep; ++j) sum += weights.weights[classes[i + j]];
    sums[i / kSumStep] = sum;
  }
  if constexpr (kTotal) AddUp(sums + first / kSumStep, (i - first) / kSumStep, total);
}

inline void ClassSums(const uint8_t* classes, size_t elements, const ClassWeights& weights,
                      uint64_t* sums, uint64_t* total) {
  return total == nullptr ? ClassSumsAs<false>(classes, elements, weights, sums, total)
                          : ClassSumsAs<true>(classes, elements, weights, sums, total);
}

inline void CountClasses(const uint8_t* classes, size_t elements, uint32_t (&counts)[kClasses]) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  // Vector lanes count eight classes at a time, up to the limit of a byte.
  const hn::ScalableTag<uint8_t> d;
  const hn::Repartition<uint64_t, decltype(d)> d64;
  const size_t lanes = hn::Lanes(d);
  const auto is = [&](auto v, unsigned c) {
    return hn::VecFromMask(d, hn::Eq(v, hn::Set(d, static_cast<uint8_t>(c))));
  };
  while (i + lanes <= elements) {
    const size_t stop = i + std::min<size_t>((elements - i) / lanes, 255) * lanes;
    for (unsigned c = 0; c < kClasses; c += 8) {
      auto n0 = hn::Zero(d), n1 = n0, n2 = n0, n3 = n0, n4 = n0, n5 = n0, n6 = n0, n7 = n0;
      for (size_t j = i; j < stop; j += lanes) {
        const auto v = hn::LoadU(d, classes + j);
        n0 = hn::Sub(n0, is(v, c));
        n1 = hn::Sub(n1, is(v, c + 1));
        n2 = hn::Sub(n2, is(v, c + 2));
        n3 = hn::Sub(n3, is(v, c + 3));
        n4 = hn::Sub(n4, is(v, c + 4));
        n5 = hn::Sub(n5, is(v, c + 5));
        n6 = hn::Sub(n6, is(v, c + 6));
        n7 = hn::Sub(n7, is(v, c + 7));
      }
      unsigned to = c;
      for (const auto n : {n0, n1, n2, n3, n4, n5, n6, n7}) {
        counts[to++] += static_cast<uint32_t>(hn::GetLane(hn::SumOfLanes(d64, hn::SumsOf8(n))));
      }
    }
    i = stop;
  }
#endif
  for (; i < elements; ++i) ++counts[classes[i]];
}

template <typename T>
bool UnpackAs(const BlockRow& row, const uint8_t* stream, const uint8_t* end, size_t elements,
              uint16_t* at, uint64_t* d) {
  if (!row.IsRaw(elements, sizeof(T))) {
    return SparseReader<T>(row, stream, end, elements).List(at, d);
  }
  size_t count = 0;
  for (size_t i = 0; i < elements; ++i) {
    const T difference = LoadElement<T>(stream, i);
    if (difference == 0) continue;
    at[count] = static_cast<uint16_t>(i);
    d[count++] = difference;
  }
  return true;
}

template <typename T>
bool PlacesAs(const BlockRow& row, const uint8_t* stream, const uint8_t* end, size_t elements,
              uint16_t* at, uint64_t* down) {
  if (!row.IsRaw(elements, sizeof(T))) {
    return SparseReader<T>(row, stream, end, elements).Places(at, down);
  }
  PutRawPlaces<T>(stream, elements, at, down);
  return true;
}

template <typename T>
BlockRow PackAs(const uint16_t* at, const uint64_t* d, size_t changed, size_t elements,
                uint8_t* out) {
  Changes changes;
  for (size_t i = 0; i < changed; ++i) {
    changes.at()[i] = at[i];
    changes.Put<T>(i, static_cast<T>(d[i]));
  }
  changes.SetCount(changed);
  const auto fetch = [d](size_t change, size_t) { return static_cast<T>(d[change]); };
  const BlockRow row = changes.Pack<T>(elements, fetch, out);
  if (changed > 0 && row.IsRaw(elements, sizeof(T))) {
    std::memset(out, 0, elements * sizeof(T));
    for (size_t i = 0; i < changed; ++i) StoreElement<T>(out, at[i], static_cast<T>(d[i]));
  }
  return row;
}

inline bool Unpack(const BlockRow& row, const uint8_t* stream, const uint8_t* end, size_t elements,
                   unsigned width, uint16_t* at, uint64_t* d) {
  return WithWidth(width,
                   [&]<typename T>(T) { return UnpackAs<T>(row, stream, end, elements, at, d); });
}

inline bool Places(const BlockRow& row, const uint8_t* stream, const uint8_t* end, size_t elements,
                   unsigned width, uint16_t* at, uint64_t* down) {
  return WithWidth(
      width, [&]<typename T>(T) { return PlacesAs<T>(row, stream, end, elements, at, down); });
}

inline BlockRow Pack(const uint16_t* at, const uint64_t* d, size_t changed, size_t elements,
                     unsigned width, uint8_t*, uint8_t* out) {
  return WithWidth(width, [&]<typename T>(T) { return PackAs<T>(at, d, changed, elements, out); });
}

inline constexpr BlockOps kBlockOps = {Classes, ClassSums, CountClasses, Unpack,
                                       Places,  Pack,      PutLanes,     GetLanes};

inline DecodeStatus Changed(Bytes payload, size_t raw_bytes, unsigned width, MutableBytes scratch,
                            ChangeVisitor visit, void* context) {
  return VisitChanges(kBlockOps, payload, raw_bytes, width, scratch, visit, context);
}

inline DecodeStatus EncodeTight(Bytes old_data, Bytes payload, unsigned width,
                                ClassFunction function, const History& history,
                                MutableBytes scratch, MutableBytes out, size_t* bytes) {
  return TightEncode(kBlockOps, old_data, payload, width, function, history, scratch, out, bytes);
}
inline DecodeStatus DecodeTight(Bytes old_data, Bytes tight, unsigned width, const History& history,
                                MutableBytes scratch, MutableBytes out, size_t* bytes) {
  return TightDecode(kBlockOps, old_data, tight, width, history, scratch, out, bytes);
}

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAWIRE_KERNELS_CPU_HIGHWAY_CLASSES_INL_H_
