// The changes of one block, collected and then packed into its sparse stream; once per target.
// Lives on the stack (about 330 KiB, of which a block touches what it changes). Trusted data only.
// Cost: 1 to 2 ns a change. The format: docs/delta_format.md, "fast".
#include "hwy/highway.h"
#include "kernels/cpu/payload.h"

#if defined(DELTAWIRE_KERNELS_CPU_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_PACK_INL_H_
#undef DELTAWIRE_KERNELS_CPU_PACK_INL_H_
#else
#define DELTAWIRE_KERNELS_CPU_PACK_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Appends the positions of `bits`' ones to `out` (room for 64) and returns how many.
HWY_INLINE size_t AppendPositions(uint64_t bits, uint32_t base, uint16_t* out) {
  const auto count = static_cast<size_t>(std::popcount(bits));
  // Four at a time, needed or not: cheaper than a branch per bit.
  for (size_t i = 0;; i += 4) {
    for (size_t j = 0; j < 4; ++j) {
      out[i + j] = static_cast<uint16_t>(base + static_cast<uint32_t>(std::countr_zero(bits)));
      bits &= bits - 1;
    }
    if (HWY_LIKELY(i + 4 >= count)) return count;
  }
}

/// Appends bits to memory that has eight bytes of room past the stream's end.
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
  /// One past the last byte.
  uint8_t* Finish() const { return at_ + (filled_ > 0); }

 private:
  uint8_t* at_;
  uint64_t pending_ = 0;
  unsigned filled_ = 0;
};

/// A block's changes: where, and the differences as far as a byte holds them.
class Changes {
 public:
  static constexpr int kWide = 127;  ///< codes of this size stand for "look it up"

  uint16_t* end() { return at_ + count_; }
  const uint16_t* at() const { return at_; }
  uint32_t count() const { return count_; }
  /// Takes in the next of the positions that were appended at end().
  template <typename T>
  HWY_INLINE void Put(T d) {
    using S = std::make_signed_t<T>;
    const S s = static_cast<S>(d);
    code_[count_++] = static_cast<int8_t>(std::clamp<S>(s, -kWide, kWide));
  }

  /// Takes in the next `n` of the positions that were appended at end(); the codes follow from old
  /// and new values. May read and write 64 entries beyond.
  void PutMany(const uint16_t* before, const uint16_t* after, size_t n);

  /// Packs the stream at `out` unless raw differences are no larger (row.bytes == raw then).
  /// `fetch(change, at)` is the difference of that change, of element `at` of the block.
  template <typename T, typename Fetch>
  BlockRow Pack(size_t elements, Fetch fetch, uint8_t* out);

 private:
  /// Finds the large changes and the bit lengths of their sizes.
  template <typename T, typename Fetch>
  void FindLarge(Fetch fetch);
  void PutGaps(WordWriter& bits, const uint16_t* at, size_t count, unsigned k) const;
  void PutSigns(WordWriter& bits) const;
  void PutQuotients(WordWriter& bits, const uint16_t* at, size_t count, unsigned k) const;
  uint64_t QuotientBits(const uint16_t* at, size_t count, unsigned k) const;
  template <typename T, typename Fetch>
  uint64_t Size(size_t large, Fetch fetch) const {
    const size_t i = large_[large];
    const int code = std::abs(int{code_[i]});
    return code < kWide ? static_cast<uint64_t>(code) - 2
                        : uint64_t{Magnitude<T>(fetch(i, at_[i]))} - 2;
  }

  uint32_t count_ = 0;
  uint32_t large_count_ = 0;
  uint32_t lengths_[65] = {};
  uint16_t at_[kBlockElements + 64];
  int8_t code_[kBlockElements + 64];
  uint16_t large_[kBlockElements + 64];
};

template <typename T, typename Fetch>
void Changes::FindLarge(Fetch fetch) {
  const hn::CappedTag<int8_t, 64> d;
  const size_t lanes = hn::Lanes(d);
  const auto one = hn::Set(d, int8_t{1});
  std::memset(code_ + count_, 0, 64);
  for (size_t i = 0; i < count_; i += 64) {
    uint64_t mask = 0;
    for (size_t j = 0; j < 64; j += lanes) {
      uint64_t part = 0;
      hn::StoreMaskBits(d, hn::Gt(hn::Abs(hn::LoadU(d, code_ + i + j)), one),
                        reinterpret_cast<uint8_t*>(&part));
      mask |= part << j;
    }
    if (mask == 0) continue;
    large_count_ += static_cast<uint32_t>(
        AppendPositions(mask, static_cast<uint32_t>(i), large_ + large_count_));
  }
  for (size_t l = 0; l < large_count_; ++l) ++lengths_[Bits(Size<T>(l, fetch))];
}

inline void Changes::PutMany(const uint16_t* before, const uint16_t* after, size_t n) {
  const hn::ScalableTag<int16_t> d;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const auto* x = reinterpret_cast<const int16_t*>(before);
  const auto* y = reinterpret_cast<const int16_t*>(after);
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto difference = hn::Sub(hn::LoadU(d, y + i), hn::LoadU(d, x + i));
    const auto code = hn::Max(difference, hn::Set(d, int16_t{-kWide}));
    hn::StoreU(hn::DemoteTo(d8, code), d8, code_ + count_ + i);  // which stops at 127 itself
  }
  count_ += static_cast<uint32_t>(n);
}

inline void Changes::PutGaps(WordWriter& bits, const uint16_t* at, size_t count, unsigned k) const {
  if (k == 0) return;
  const uint64_t mask = LowMask(k);
  size_t i = 0;
  uint64_t next = 0;
  if (k <= 14) {
    for (; i + 4 <= count; i += 4) {
      const uint64_t a = at[i], b = at[i + 1], c = at[i + 2], d = at[i + 3];
      const uint64_t pair = ((a - next) & mask) | ((b - a - 1) & mask) << k;
      const uint64_t other = ((c - b - 1) & mask) | ((d - c - 1) & mask) << k;
      bits.Put(pair | other << 2 * k, 4 * k);
      next = d + 1;
    }
  }
  for (; i < count; ++i) {
    bits.Put((at[i] - next) & mask, k);
    next = uint64_t{at[i]} + 1;
  }
}

inline void Changes::PutSigns(WordWriter& bits) const {
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
}

inline void Changes::PutQuotients(WordWriter& bits, const uint16_t* at, size_t count,
                                  unsigned k) const {
  size_t i = 0;
  uint32_t next = 0;
  for (; i + 4 <= count; i += 4) {
    const uint32_t a = at[i], b = at[i + 1], c = at[i + 2], d = at[i + 3];
    const uint32_t qa = (a - next) >> k, qb = (b - a - 1) >> k;
    const uint32_t qc = (c - b - 1) >> k, qd = (d - c - 1) >> k;
    const uint32_t ends_b = qa + qb + 1, ends_c = ends_b + qc + 1, ends_d = ends_c + qd + 1;
    if (HWY_LIKELY(ends_d < 56)) {
      bits.Put(
          uint64_t{1} << qa | uint64_t{1} << ends_b | uint64_t{1} << ends_c | uint64_t{1} << ends_d,
          ends_d + 1);
    } else {
      for (const uint32_t q : {qa, qb, qc, qd}) bits.PutUnary(q);
    }
    next = d + 1;
  }
  for (; i < count; ++i) {
    bits.PutUnary((at[i] - next) >> k);
    next = uint32_t{at[i]} + 1;
  }
}

inline uint64_t Changes::QuotientBits(const uint16_t* at, size_t count, unsigned k) const {
  uint64_t bits = count;
  uint32_t next = 0;
  for (size_t i = 0; i < count; ++i) {
    bits += (at[i] - next) >> k;
    next = uint32_t{at[i]} + 1;
  }
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
  // Never less than the true size, and nearly always enough to say that the stream is small.
  uint64_t bound = uint64_t{c} * (k + 2) + (elements >> k) + uint64_t{e} * (kl + 1) + (c >> kl) + 6;
  for (unsigned l = 0; l <= 64; ++l) {
    bound += uint64_t{lengths_[l]} * (2 * (l > order ? l - order : 0) + 1 + order);
  }
  if (bound / 8 + 1 >= raw) {
    uint64_t exact = uint64_t{c} * (k + 1) + QuotientBits(at_, c, k);
    if (e > 0) exact += uint64_t{e} * kl + QuotientBits(large_, e, kl) + 6;
    for (size_t l = 0; l < e; ++l) {
      exact += 2 * Bits((Size<T>(l, fetch) >> order) + 1) - 1 + order;
    }
    if ((exact + 7) / 8 >= raw) return {c, 0, static_cast<uint32_t>(raw)};
  }
  WordWriter bits(out);
  PutGaps(bits, at_, c, k);
  PutSigns(bits);
  PutQuotients(bits, at_, c, k);
  if (e > 0) {
    PutGaps(bits, large_, e, kl);
    PutQuotients(bits, large_, e, kl);
    bits.Put(order, 6);
    for (size_t l = 0; l < e; ++l) {
      const uint64_t v = Size<T>(l, fetch);
      const uint64_t u = (v >> order) + 1;
      bits.PutUnary(Bits(u) - 1);
      bits.PutLong(u & LowMask(Bits(u) - 1), Bits(u) - 1);
      bits.PutLong(v & LowMask(order), order);
    }
  }
  return {c, e, static_cast<uint32_t>(bits.Finish() - out)};
}

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAWIRE_KERNELS_CPU_PACK_INL_H_
