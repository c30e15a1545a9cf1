// A reader of one sparse block of a fast payload, into which it points. It decodes all positions
// first, so that their elements can be prefetched while the rest is decoded. Uses about 260 KiB of
// stack. Costs 1 to 2 ns per change, plus the sink's work. It never reads past `end`.
#include "hwy/highway.h"
#include "kernels/payload.h"

#if defined(DELTAWIRE_KERNELS_CPU_HIGHWAY_SPARSE_READER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_HIGHWAY_SPARSE_READER_INL_H_
#undef DELTAWIRE_KERNELS_CPU_HIGHWAY_SPARSE_READER_INL_H_
#else
#define DELTAWIRE_KERNELS_CPU_HIGHWAY_SPARSE_READER_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {

template <typename T>
class SparseReader {
 public:
  /// `end` is the end of the whole payload. REQUIRES: `row` is from a payload that
  /// PayloadView::Parse accepted, and row.changed > 0.
  SparseReader(const BlockRow& row, const uint8_t* stream, const uint8_t* end, size_t elements)
      : row_(row), stream_(stream), end_(end), elements_(elements) {}

  /// Calls sink.Change(i, d) for every change in order, each some time after sink.Prefetch(i).
  /// Returns false when the stream is malformed. The sink may have got some changes by then, but
  /// never an index outside of the block.
  template <typename Sink>
  bool Walk(Sink& sink) {
    const uint64_t c = row_.changed;
    const unsigned k = RiceParameter(c, elements_);
    const uint64_t signs = c * k;
    uint64_t at = signs + c;
    uint16_t positions[kBlockElements + kAhead], large[kBlockElements];
    if (!ReadPositions(0, &at, c, k, elements_, positions)) return false;
    for (size_t i = 0; i < kAhead; ++i) {
      positions[c + i] = positions[c - 1];
      sink.Prefetch(positions[std::min<size_t>(i, c - 1)]);
    }
    if (row_.large > 0) {
      const unsigned kl = RiceParameter(row_.large, c);
      const uint64_t low = at;
      at += uint64_t{row_.large} * kl;
      if (!ReadPositions(low, &at, row_.large, kl, c, large)) return false;
    }
    if (at > StreamBits()) return false;
    BitReader sizes(stream_, row_.bytes);
    sizes.Skip(at);
    if (row_.large > 0) order_ = static_cast<unsigned>(sizes.Get(kOrderBits));
    size_t i = 0;
    const auto units_until = [&](size_t stop) {
      for (; i < stop; ++i) {
        sink.Prefetch(positions[i + kAhead]);
        sink.Change(positions[i], UnitDifference(signs + i));
      }
    };
    for (size_t l = 0; l < row_.large; ++l, ++i) {
      units_until(large[l]);
      T d = 0;
      if (!ReadSize(sizes, SignBit(signs + i), &d)) return false;
      sink.Prefetch(positions[i + kAhead]);
      sink.Change(positions[i], d);
    }
    units_until(c);
    return sizes.AtPaddedEnd();
  }

  /// Writes all changes in order: their places, and their differences zero-extended. Both arrays
  /// have room for row.changed. Returns false when the stream is malformed.
  bool List(uint16_t* at, uint64_t* d) {
    const uint64_t c = row_.changed;
    uint64_t bit = 0;
    if (!ReadPlaces(at, &bit)) return false;
    PutUnits(c, d);
    uint16_t large[kBlockElements];
    if (row_.large > 0) {
      const unsigned kl = RiceParameter(row_.large, c);
      const uint64_t low = bit;
      bit += uint64_t{row_.large} * kl;
      if (!ReadPositions(low, &bit, row_.large, kl, c, large)) return false;
    }
    if (bit > StreamBits()) return false;
    BitReader sizes(stream_, row_.bytes);
    sizes.Skip(bit);
    if (row_.large > 0) order_ = static_cast<unsigned>(sizes.Get(kOrderBits));
    for (size_t l = 0; l < row_.large; ++l) {
      T difference = 0;
      if (!ReadSize(sizes, d[large[l]] != 1, &difference)) return false;
      d[large[l]] = difference;
    }
    return sizes.AtPaddedEnd();
  }

  /// Writes only the changes' places, and sets bit i of `down` if the i-th one is negative.
  /// REQUIRES: the stream is valid. Returns false if it finds malformed places.
  bool Places(uint16_t* at, uint64_t* down) const {
    uint64_t bit = 0;
    if (!ReadPlaces(at, &bit)) return false;
    for (size_t i = 0; i < row_.changed; i += 64) down[i / 64] = SignBits(i);
    return true;
  }

  /// Returns the order of the sizes' code. REQUIRES: Walk was called.
  unsigned order() const { return order_; }

 private:
  /// The number of changes between the prefetch of an element and its change.
  static constexpr size_t kAhead = 64;

  uint64_t StreamBits() const { return uint64_t{row_.bytes} * 8; }

  /// Reads the places of all changes; *bit becomes the first one after them.
  bool ReadPlaces(uint16_t* at, uint64_t* bit) const {
    const unsigned k = RiceParameter(row_.changed, elements_);
    *bit = uint64_t{row_.changed} * (k + 1);
    return ReadPositions(0, bit, row_.changed, k, elements_, at);
  }
  /// Returns the signs of up to 64 changes from change `i` on.
  uint64_t SignBits(size_t i) const {
    const uint64_t bit = uint64_t{row_.changed} * RiceParameter(row_.changed, elements_) + i;
    const uint8_t* from = stream_ + bit / 8;
    const unsigned shift = bit % 8;
    const uint64_t low = Load64Within(from, end_) >> shift;
    return low | Load64Within(from + 8, end_) << 1 << (63 - shift);
  }
  /// Sets every difference to 1 or -1.
  void PutUnits(size_t count, uint64_t* d) const {
    constexpr uint64_t kMinus = static_cast<T>(~T{0});
    for (size_t first = 0; first < count; first += 64) {
      uint64_t down = SignBits(first);
      const size_t stop = std::min(count, first + 64);
      size_t i = first;
#if HWY_TARGET <= HWY_AVX3
      for (; i + 8 <= stop; i += 8, down >>= 8) {
        const __m512i units =
            _mm512_mask_blend_epi64(static_cast<__mmask8>(down), _mm512_set1_epi64(1),
                                    _mm512_set1_epi64(static_cast<int64_t>(kMinus)));
        _mm512_storeu_si512(d + i, units);
      }
#endif
      for (; i < stop; ++i, down >>= 1) d[i] = (down & 1) != 0 ? kMinus : 1;
    }
  }

  unsigned SignBit(uint64_t bit) const { return stream_[bit / 8] >> bit % 8 & 1; }
  T UnitDifference(uint64_t bit) const {
    return static_cast<T>(1 - 2 * static_cast<int>(SignBit(bit)));
  }

  /// Reads `count` Rice codes, whose lower k bits start at bit `low` and whose unary quotients
  /// start at bit *at; moves *at past the quotients. Returns false when malformed. Positions only
  /// rise, so it is enough to check the last one.
  bool ReadPositions(uint64_t low, uint64_t* at, size_t count, unsigned k, size_t places,
                     uint16_t* positions) const {
    const uint64_t start = *at;
    if (start > StreamBits()) return false;
#if HWY_TARGET <= HWY_AVX3
    if (k <= kMostLowBits) return ReadInVectors(low, at, count, k, places, positions);
#endif
    const uint64_t mask = LowMask(k);
    uint64_t sum = 0, position = 0;
    size_t i = 0;
    unsigned skip = start % 8;
    for (uint64_t base = start - skip; i < count; base += 64) {
      if (base >= StreamBits()) return false;
      uint64_t word = Load64Within(stream_ + base / 8, end_) & ~uint64_t{0} << skip;
      skip = 0;
      const size_t stop = std::min(count, i + static_cast<size_t>(std::popcount(word)));
      uint64_t zeros = base - start - i;  // before this word's first bit, wrapping
      for (; i < stop; ++i) {
        const auto bit = static_cast<uint64_t>(std::countr_zero(word));
        word &= word - 1;
        const uint64_t lower = low + i * k;
        sum += Load64Within(stream_ + lower / 8, end_) >> lower % 8 & mask;
        position = ((zeros + bit) << k) + sum + i;
        positions[i] = static_cast<uint16_t>(position);
        --zeros;  // the code's own one is not a zero
        *at = base + bit + 1;
      }
    }
    return position < places;
  }

#if HWY_TARGET <= HWY_AVX3
  /// The largest parameter for which eight lower parts add up to less than 2^16.
  static constexpr unsigned kMostLowBits = 13;
  /// A 16-bit number times this is that number in each of four lanes.
  static constexpr uint64_t kFour = 0x0001000100010001;

  /// ReadPositions in vectors: first all quotients, then eight positions at a time.
  bool ReadInVectors(uint64_t low, uint64_t* at, size_t count, unsigned k, size_t places,
                     uint16_t* positions) const {
    if (!ReadQuotients(at, count, positions)) return false;
    const uint64_t quotient = positions[count - 1];
    const uint64_t lanes = LowMask(k) * kFour;
    const auto lows = [&](size_t i) {
      const uint64_t bit = low + i * k;
      return static_cast<int64_t>(
          _pdep_u64(Load64Within(stream_ + bit / 8, end_) >> bit % 8, lanes));
    };
    const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(k));
    __m128i index = _mm_set_epi16(7, 6, 5, 4, 3, 2, 1, 0);
    uint64_t sum = 0;
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
      __m128i lower = _mm_set_epi64x(lows(i + 4), lows(i));
      lower = _mm_add_epi16(lower, _mm_slli_si128(lower, 2));
      lower = _mm_add_epi16(lower, _mm_slli_si128(lower, 4));
      lower = _mm_add_epi16(lower, _mm_slli_si128(lower, 8));
      auto* out = reinterpret_cast<__m128i*>(positions + i);
      const __m128i upper = _mm_add_epi16(_mm_sll_epi16(_mm_loadu_si128(out), shift), index);
      const __m128i before = _mm_set1_epi16(static_cast<int16_t>(sum));
      _mm_storeu_si128(out, _mm_add_epi16(_mm_add_epi16(lower, before), upper));
      sum += static_cast<uint64_t>(_mm_extract_epi16(lower, 7));
      index = _mm_add_epi16(index, _mm_set1_epi16(8));
    }
    for (; i < count; ++i) {
      const uint64_t bit = low + i * k;
      sum += Load64Within(stream_ + bit / 8, end_) >> bit % 8 & LowMask(k);
      positions[i] = static_cast<uint16_t>((uint64_t{positions[i]} << k) + sum + i);
    }
    // In more than 16 bits: positions only rise, so none has wrapped if the last one has not.
    return (quotient << k) + sum + count - 1 < places;
  }

  /// Reads unary codes into running sums: the number of zeros up to each code's one. Returns false
  /// if bits are missing or the last sum has more than 16 bits.
  bool ReadQuotients(uint64_t* at, size_t count, uint16_t* zeros) const {
    const uint64_t start = *at;
    size_t i = 0;
    for (uint64_t first = start;; first += 64 - first % 8) {
      if (first >= StreamBits()) return false;
      const uint64_t word = Load64Within(stream_ + first / 8, end_) >> first % 8;
      const uint64_t before = first - start - i;  // zeros
      const size_t ones = std::min(count - i, static_cast<size_t>(std::popcount(word)));
      uint64_t bits = word;
      const auto next = [&bits] {
        const auto bit = static_cast<uint64_t>(__builtin_ctzll(bits | uint64_t{1} << 63));
        bits &= bits - 1;
        return bit;
      };
      // Four at a time, even beyond the last one: later codes overwrite the excess. No valid lane
      // borrows from another, since the word's n-th one is at bit n or later.
      size_t n = 0;
      for (; n < ones && i + n + 4 <= count; n += 4) {
        uint64_t four = next();
        four |= next() << 16;
        four |= next() << 32;
        four |= next() << 48;
        four -= n * kFour + 0x0003000200010000;
        four += before * kFour;
        std::memcpy(zeros + i + n, &four, sizeof(four));
      }
      for (; n < ones; ++n) zeros[i + n] = static_cast<uint16_t>(before + next() - n);
      i += ones;
      if (i < count) continue;
      const auto last =
          static_cast<uint64_t>(std::countr_zero(_pdep_u64(uint64_t{1} << (ones - 1), word)));
      *at = first + last + 1;
      return before + last - (ones - 1) <= 0xffff;
    }
  }
#endif

  bool ReadSize(BitReader& sizes, unsigned negative, T* d) const {
    uint64_t v = 0;
    const uint64_t window = sizes.Window();
    const auto zeros = static_cast<unsigned>(std::countr_zero(window | uint64_t{1} << 63));
    if (const unsigned all = 2 * zeros + 1 + order_; HWY_LIKELY(all <= BitReader::kWindowBits)) {
      const uint64_t lower = window >> (zeros + 1);
      const uint64_t u = uint64_t{1} << zeros | (lower & LowMask(zeros));
      v = (u - 1) << order_ | (lower >> zeros & LowMask(order_));
      sizes.Skip(all);
    } else {
      const auto n = static_cast<unsigned>(sizes.GetUnary(63));
      if (n + order_ > 63) return false;
      const uint64_t u = uint64_t{1} << n | sizes.Get(n);
      v = (u - 1) << order_ | sizes.Get(order_);
    }
    if (!sizes.ok() || v > uint64_t{kLargestMagnitude<T>} - 2) return false;
    const T magnitude = static_cast<T>(v + 2);
    if (magnitude == kLargestMagnitude<T> && negative == 0) return false;
    *d = negative != 0 ? static_cast<T>(T{0} - magnitude) : magnitude;
    return true;
  }

  const BlockRow& row_;
  const uint8_t* stream_;
  const uint8_t* end_;
  size_t elements_;
  unsigned order_ = 0;
};

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAWIRE_KERNELS_CPU_HIGHWAY_SPARSE_READER_INL_H_
