// The changes of one block, and their packing into its sparse stream (docs/delta_format.md,
// "fast"); compiled once per target. It lives on a thread's stack: 460 KiB, of which a block
// touches a part in proportion to its changes. Trusted data only. Costs 1 to 2 ns per change.
#include "hwy/highway.h"
#include "kernels/payload.h"

#if defined(DELTAWIRE_KERNELS_CPU_HIGHWAY_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_HIGHWAY_PACK_INL_H_
#undef DELTAWIRE_KERNELS_CPU_HIGHWAY_PACK_INL_H_
#else
#define DELTAWIRE_KERNELS_CPU_HIGHWAY_PACK_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Appends `base` plus the position of each set bit of `bits` to `out`, which has room for 64, and
/// returns the number of set bits.
HWY_INLINE size_t AppendPositions(uint64_t bits, uint32_t base, uint16_t* out) {
  const auto count = static_cast<size_t>(std::popcount(bits));
  const auto next = [&bits] {
    // Bit 63 is set so that the argument is never 0; a test for 0 would be an unpredictable branch.
    const auto at = static_cast<uint64_t>(__builtin_ctzll(bits | uint64_t{1} << 63));
    bits &= bits - 1;
    return at;
  };
  // Positions are made four at a time, even beyond `count`, which is cheaper than a branch per bit.
  // They are stored as one 64-bit number, because compilers turn four stores into slow vector code.
  // Lanes beyond `count` are garbage, and a carry out of one reaches only lanes beyond it.
  for (size_t i = 0;; i += 4) {
    uint64_t four = next();
    four |= next() << 16;
    four |= next() << 32;
    four |= next() << 48;
    four += base * uint64_t{0x0001000100010001};
    std::memcpy(out + i, &four, sizeof(four));
    if (HWY_LIKELY(i + 4 >= count)) return count;
  }
}

/// Appends bits. REQUIRES: the memory has eight bytes of room past the stream's end.
class WordWriter {
 public:
  explicit WordWriter(uint8_t* out) : at_(out) {}

  /// REQUIRES: bits <= 56, no bit of `value` above them.
  HWY_INLINE void Put(uint64_t value, unsigned bits) {
    pending_ |= value << filled_;
    std::memcpy(at_, &pending_, 8);
    filled_ += bits;
    at_ += filled_ / 8;
    pending_ >>= filled_ & ~7u;
    filled_ &= 7;
  }
  void PutLong(uint64_t value, unsigned bits) {
    for (; bits > 32; bits -= 32, value >>= 32) Put(value & 0xffffffff, 32);
    Put(value & LowMask(bits), bits);
  }
  void PutUnary(uint64_t zeros) {
    for (; zeros > 55; zeros -= 55) Put(0, 55);
    Put(uint64_t{1} << zeros, static_cast<unsigned>(zeros) + 1);
  }
  uint8_t* Finish() const { return at_ + (filled_ > 0); }

 private:
  uint8_t* at_;
  uint64_t pending_ = 0;
  unsigned filled_ = 0;
};

/// A 16-bit number times this factor is that number in each of four 16-bit lanes.
inline constexpr uint64_t kEachOfFour = 0x0001000100010001;

/// Returns the number of places between at[i - 1] and at[i].
HWY_INLINE uint64_t GapBefore(const uint16_t* at, size_t i) {
  return i == 0 ? at[0] : uint64_t{at[i]} - at[i - 1] - 1;
}
/// Returns the gaps before at[i .. i + 3], 16 bits each. Places rise, so no lane borrows from the
/// next.
HWY_INLINE uint64_t FourGaps(const uint16_t* at, size_t i) {
  uint64_t here, before;
  std::memcpy(&here, at + i, 8);
  if (HWY_UNLIKELY(i == 0)) return here - (here << 16) - (kEachOfFour - 1);
  std::memcpy(&before, at + i - 1, 8);
  return here - before - kEachOfFour;
}

/// Gathers the lower k bits of each of four 16-bit lanes, k <= 14.
#if HWY_TARGET <= HWY_AVX3  // every processor with AVX-512 also has pext, which does it in one step
class FourLows {
 public:
  explicit FourLows(unsigned k) : lanes_(LowMask(k) * kEachOfFour) {}
  HWY_INLINE uint64_t Of(uint64_t lanes) const { return _pext_u64(lanes, lanes_); }

 private:
  uint64_t lanes_;
};
#else
class FourLows {
 public:
  explicit FourLows(unsigned k)
      : even_(LowMask(k) * 0x0000000100000001), odd_(even_ << 16), k_(k) {}
  HWY_INLINE uint64_t Of(uint64_t lanes) const {
    const uint64_t pairs = (lanes & even_) | (lanes & odd_) >> (16 - k_);
    return static_cast<uint32_t>(pairs) | pairs >> 32 << 2 * k_;
  }

 private:
  uint64_t even_, odd_;
  unsigned k_;
};
#endif

#if HWY_TARGET <= HWY_AVX3
/// The unary codes of the quotients of the gaps before at[i .. i + 7], i > 0.
class QuotientsOfEight {
 public:
  HWY_INLINE QuotientsOfEight(const uint16_t* at, size_t i, unsigned k) {
    const __m128i here = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + i));
    const __m128i before = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + i - 1));
    // The end of each code is the sum of all codes' lengths up to it, and a length is quotient + 1.
    // The sums fit 16 bits, because places do.
    __m128i sum = _mm_sub_epi16(_mm_sub_epi16(here, before), _mm_set1_epi16(1));
    sum = _mm_srl_epi16(sum, _mm_cvtsi32_si128(static_cast<int>(k)));
    sum = _mm_add_epi16(sum, _mm_set1_epi16(1));
    sum = _mm_add_epi16(sum, _mm_slli_si128(sum, 2));
    sum = _mm_add_epi16(sum, _mm_slli_si128(sum, 4));
    ends_ = _mm_add_epi16(sum, _mm_slli_si128(sum, 8));
  }
  HWY_INLINE unsigned length() const { return static_cast<unsigned>(_mm_extract_epi16(ends_, 7)); }
  /// REQUIRES: length() <= 64.
  HWY_INLINE uint64_t Code() const {
    const __m512i one = _mm512_set1_epi64(1);
    const __m512i places = _mm512_sub_epi64(_mm512_cvtepu16_epi64(ends_), one);
    return static_cast<uint64_t>(_mm512_reduce_or_epi64(_mm512_sllv_epi64(one, places)));
  }

 private:
  __m128i ends_;
};
#endif

/// A block's changes: their places, and their differences clamped to a byte.
class Changes {
 public:
  static constexpr uint8_t kWide = 127;  ///< a code of this magnitude means "call fetch"

  /// Returns the array for the changes' places, which must be filled in rising order.
  uint16_t* at() { return at_; }
  const uint16_t* at() const { return at_; }
  uint32_t count() const { return count_; }
  template <typename T>
  HWY_INLINE void Put(size_t i, T d) {
    using S = std::make_signed_t<T>;
    const S s = static_cast<S>(d);
    code_[i] = static_cast<int8_t>(std::clamp<S>(s, -S{kWide}, S{kWide}));
  }
  /// Call this once all places and differences are set.
  void SetCount(size_t count) { count_ = static_cast<uint32_t>(count); }

  /// Packs the stream at `out`. If raw differences would be no larger, writes nothing and sets
  /// row.bytes to their size. `fetch(change, at)` returns the difference of change number `change`,
  /// at element `at` of the block.
  template <typename T, typename Fetch>
  BlockRow Pack(size_t elements, Fetch fetch, uint8_t* out);

 private:
  /// Finds the large changes and the bit lengths of their sizes.
  template <typename T, typename Fetch>
  void FindLarge(Fetch fetch);
  template <typename T, typename Fetch>
  void CountLengths(Fetch fetch);
  // Writers are passed by value: behind a reference their members would have to live in memory,
  // because the byte stores might alias them.
  static WordWriter PutGaps(WordWriter bits, const uint16_t* at, size_t count, unsigned k);
  WordWriter PutSigns(WordWriter bits) const;
  static WordWriter PutQuotients(WordWriter bits, const uint16_t* at, size_t count, unsigned k);
  static uint64_t QuotientBits(const uint16_t* at, size_t count, unsigned k);
  template <typename T, typename Fetch>
  uint64_t Size(size_t large, Fetch fetch) const {
    const uint64_t magnitude = magnitude_[large];
    if (HWY_LIKELY(magnitude < kWide)) return magnitude - 2;
    const size_t i = large_[large];
    return uint64_t{Magnitude<T>(fetch(i, at_[i]))} - 2;
  }

  uint32_t count_ = 0;
  uint32_t large_count_ = 0;
  uint32_t lengths_[kBitLengths] = {};
  uint16_t at_[kBlockElements + 64];
  int8_t code_[kBlockElements + 64];
  uint16_t large_[kBlockElements + 64];
  uint16_t magnitude_[kBlockElements + 64];  // of the large changes, at most kWide
};

template <typename T, typename Fetch>
void Changes::FindLarge(Fetch fetch) {
  // Compresses lanes instead of branching, because large changes are unpredictable.
  const hn::ScalableTag<int32_t> d;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const hn::Rebind<uint16_t, decltype(d)> d16;
  const size_t lanes = hn::Lanes(d);
  const auto one = hn::Set(d, 1), step = hn::Set(d, static_cast<int32_t>(lanes));
  auto index = hn::Iota(d, 0);
  std::memset(code_ + count_, 0, 64);
  size_t large = 0;
  for (size_t i = 0; i < count_; i += lanes) {
    const auto magnitude = hn::Abs(hn::PromoteTo(d, hn::LoadU(d8, code_ + i)));
    const auto mask = hn::Gt(magnitude, one);
    hn::StoreU(hn::DemoteTo(d16, hn::Compress(index, mask)), d16, large_ + large);
    hn::StoreU(hn::DemoteTo(d16, hn::Compress(magnitude, mask)), d16, magnitude_ + large);
    large += hn::CountTrue(d, mask);
    index = hn::Add(index, step);
  }
  large_count_ = static_cast<uint32_t>(large);
  CountLengths<T>(fetch);
}

template <typename T, typename Fetch>
void Changes::CountLengths(Fetch fetch) {
  // reach[l] counts changes whose size v has l bits or more, i.e. a magnitude >= 2^(l-1) + 2.
  constexpr size_t kBits = 7;
  const hn::CappedTag<int16_t, 32> d;
  const size_t lanes = hn::Lanes(d);
  std::memset(magnitude_ + large_count_, 0, 64);
  uint32_t reach[kBits + 2] = {large_count_};
  for (size_t i = 0; i < large_count_; i += lanes) {
    const auto m = hn::LoadU(d, reinterpret_cast<const int16_t*>(magnitude_ + i));
    for (size_t l = 1; l <= kBits; ++l) {
      const auto below = hn::Set(d, static_cast<int16_t>((1 << (l - 1)) + 1));
      reach[l] += static_cast<uint32_t>(hn::CountTrue(d, hn::Gt(m, below)));
    }
    reach[kBits + 1] += static_cast<uint32_t>(hn::CountTrue(d, hn::Eq(m, hn::Set(d, kWide))));
  }
  for (size_t l = 0; l <= kBits; ++l) lengths_[l] = reach[l] - reach[l + 1];
  if (HWY_LIKELY(reach[kBits + 1] == 0)) return;
  for (size_t l = 0; l < large_count_; ++l) {
    if (magnitude_[l] == kWide) ++lengths_[Bits(Size<T>(l, fetch))];
  }
}

inline WordWriter Changes::PutGaps(WordWriter bits, const uint16_t* at, size_t count, unsigned k) {
  if (k == 0) return bits;
  size_t i = 0;
  if (k <= 7) {
    const FourLows lows(k);
    for (; i + 8 <= count; i += 8) {
      bits.Put(lows.Of(FourGaps(at, i)) | lows.Of(FourGaps(at, i + 4)) << 4 * k, 8 * k);
    }
  } else if (k <= 14) {
    const FourLows lows(k);
    for (; i + 4 <= count; i += 4) bits.Put(lows.Of(FourGaps(at, i)), 4 * k);
  }
  for (; i < count; ++i) bits.Put(GapBefore(at, i) & LowMask(k), k);
  return bits;
}

inline WordWriter Changes::PutSigns(WordWriter bits) const {
  const hn::CappedTag<int8_t, 32> d;
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i < count_; i += 32) {
    uint64_t signs = 0;
    for (size_t j = 0; j < 32; j += lanes) {
      uint64_t part = 0;
      hn::StoreMaskBits(d, hn::Lt(hn::LoadU(d, code_ + i + j), hn::Zero(d)),
                        reinterpret_cast<uint8_t*>(&part));
      signs |= part << j;
    }
    bits.Put(signs, static_cast<unsigned>(std::min<size_t>(32, count_ - i)));
  }
  return bits;
}

inline WordWriter Changes::PutQuotients(WordWriter bits, const uint16_t* at, size_t count,
                                        unsigned k) {
  const uint64_t lane = LowMask(16 - k) * kEachOfFour;
  // The places of the ones in four codes: the multiplication adds to each lane the quotients before
  // it, and the constant adds the ones of the codes before.
  const auto ends = [&](size_t i) {
    return (FourGaps(at, i) >> k & lane) * kEachOfFour + 0x0003000200010000;
  };
  const auto ones = [](uint64_t e) {
    return uint64_t{1} << (e & 63) | uint64_t{1} << (e >> 16 & 63) | uint64_t{1} << (e >> 32 & 63) |
           uint64_t{1} << (e >> 48 & 63);
  };
  size_t i = 0;
#if HWY_TARGET <= HWY_AVX3
  if (count >= 16) {
    for (; i < 8; ++i) bits.PutUnary(GapBefore(at, i) >> k);
    for (; i + 8 <= count; i += 8) {
      const QuotientsOfEight quotients(at, i, k);
      if (HWY_LIKELY(quotients.length() <= 56)) {
        bits.Put(quotients.Code(), quotients.length());
      } else {
        for (size_t j = i; j < i + 8; ++j) bits.PutUnary(GapBefore(at, j) >> k);
      }
    }
  }
#endif
  for (; i + 8 <= count; i += 8) {
    const uint64_t first = ends(i), second = ends(i + 4);
    const auto middle = static_cast<unsigned>(first >> 48) + 1;
    const unsigned all = middle + static_cast<unsigned>(second >> 48) + 1;
    if (HWY_LIKELY(all <= 56)) {
      bits.Put(ones(first) | ones(second) << middle, all);
    } else {
      for (size_t j = i; j < i + 8; ++j) bits.PutUnary(GapBefore(at, j) >> k);
    }
  }
  for (; i < count; ++i) bits.PutUnary(GapBefore(at, i) >> k);
  return bits;
}

inline uint64_t Changes::QuotientBits(const uint16_t* at, size_t count, unsigned k) {
  uint64_t bits = count;
  for (size_t i = 0; i < count; ++i) bits += GapBefore(at, i) >> k;
  return bits;
}

template <typename T, typename Fetch>
BlockRow Changes::Pack(size_t elements, Fetch fetch, uint8_t* out) {
  if (count_ == 0) return {};
  FindLarge<T>(fetch);
  const uint32_t c = count_, e = large_count_;
  const unsigned k = RiceParameter(c, elements);
  const unsigned kl = e > 0 ? RiceParameter(e, c) : 0;
  const unsigned order = e > 0 ? SizeOrder(lengths_, e) : 0;
  const size_t raw = elements * sizeof(T);
  // An upper bound, which nearly always suffices to show that the stream is smaller than raw.
  uint64_t bound =
      uint64_t{c} * (k + 2) + (elements >> k) + uint64_t{e} * (kl + 1) + (c >> kl) + kOrderBits;
  for (unsigned l = 0; l < kBitLengths; ++l) {
    bound += uint64_t{lengths_[l]} * (2 * (l > order ? l - order : 0) + 1 + order);
  }
  if (bound / 8 + 1 >= raw) {
    uint64_t exact = uint64_t{c} * (k + 1) + QuotientBits(at_, c, k);
    if (e > 0) exact += uint64_t{e} * kl + QuotientBits(large_, e, kl) + kOrderBits;
    for (size_t l = 0; l < e; ++l) {
      exact += 2 * Bits((Size<T>(l, fetch) >> order) + 1) - 1 + order;
    }
    if ((exact + 7) / 8 >= raw) return {c, 0, static_cast<uint32_t>(raw)};
  }
  WordWriter bits(out);
  bits = PutGaps(bits, at_, c, k);
  bits = PutSigns(bits);
  bits = PutQuotients(bits, at_, c, k);
  if (e > 0) {
    bits = PutGaps(bits, large_, e, kl);
    bits = PutQuotients(bits, large_, e, kl);
    bits.Put(order, kOrderBits);
    for (size_t l = 0; l < e; ++l) {
      const uint64_t v = Size<T>(l, fetch);
      const uint64_t u = (v >> order) + 1;
      const unsigned more = Bits(u) - 1;
      const uint64_t lower = (u & LowMask(more)) | (v & LowMask(order)) << more;
      if (HWY_LIKELY(2 * more + 1 + order <= 56)) {
        bits.Put((2 * lower + 1) << more, 2 * more + 1 + order);
      } else {
        bits.PutUnary(more);
        bits.PutLong(u & LowMask(more), more);
        bits.PutLong(v & LowMask(order), order);
      }
    }
  }
  return {c, e, static_cast<uint32_t>(bits.Finish() - out)};
}

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAWIRE_KERNELS_CPU_HIGHWAY_PACK_INL_H_
