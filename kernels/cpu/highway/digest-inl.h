// The digest of a range, in vectors, and the digest's growth for one element; compiled once per
// target. Runs at memory speed, as the key stays in the first-level cache.
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/payload.h"

// Highway includes this file once per instruction set; the toggle is its idiom of include guard.
#if defined(DELTAWIRE_KERNELS_CPU_HIGHWAY_DIGEST_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_HIGHWAY_DIGEST_INL_H_
#undef DELTAWIRE_KERNELS_CPU_HIGHWAY_DIGEST_INL_H_
#else
#define DELTAWIRE_KERNELS_CPU_HIGHWAY_DIGEST_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Returns the sum of all lanes, added one by one: GCC's AVX-512 reduction adds signed numbers,
/// whose overflow would be undefined behavior.
template <class D>
HWY_INLINE uint64_t AddUpLanes(D d64, hn::VFromD<D> v) {
  HWY_ALIGN uint64_t lanes[hn::MaxLanes(d64)];
  hn::Store(v, d64, lanes);
  uint64_t total = 0;
  for (size_t lane = 0; lane < hn::Lanes(d64); ++lane) total += lanes[lane];
  return total;
}

/// Returns the sum of key * word over `words` whole words.
inline uint64_t SumWords(const uint64_t* HWY_RESTRICT key, const uint8_t* HWY_RESTRICT data,
                         size_t words) {
  uint64_t total = 0;
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR  // HWY_SCALAR has no 32 x 32 multiplication
  const hn::ScalableTag<uint64_t> d64;
  const hn::Repartition<uint32_t, decltype(d64)> d32;
  const hn::Rebind<uint32_t, decltype(d64)> dhalf;
  const size_t lanes = hn::Lanes(d64);
  // key * word = low(key) * word + (high(key) * word << 32): two 32 x 32 multiplications, which are
  // fast everywhere. The shift is done once, at the end.
  auto low0 = hn::Zero(d64), low1 = hn::Zero(d64), high0 = hn::Zero(d64), high1 = hn::Zero(d64);
  const auto* p = reinterpret_cast<const uint32_t*>(data);
  // Farther ahead than the hardware prefetches. This more than doubles the rate for data that are
  // not in the cache.
  constexpr size_t kAheadWords = 2048;
  for (; i + 2 * lanes <= words; i += 2 * lanes) {
    hwy::Prefetch(p + i + kAheadWords);
    const auto k0 = hn::LoadU(d64, key + i);
    const auto k1 = hn::LoadU(d64, key + i + lanes);
    const auto w0 = hn::BitCast(d32, hn::PromoteTo(d64, hn::LoadU(dhalf, p + i)));
    const auto w1 = hn::BitCast(d32, hn::PromoteTo(d64, hn::LoadU(dhalf, p + i + lanes)));
    low0 = hn::Add(low0, hn::MulEven(hn::BitCast(d32, k0), w0));
    low1 = hn::Add(low1, hn::MulEven(hn::BitCast(d32, k1), w1));
    high0 = hn::Add(high0, hn::MulEven(hn::BitCast(d32, hn::ShiftRight<32>(k0)), w0));
    high1 = hn::Add(high1, hn::MulEven(hn::BitCast(d32, hn::ShiftRight<32>(k1)), w1));
  }
  total = AddUpLanes(d64, hn::Add(hn::Add(low0, low1), hn::ShiftLeft<32>(hn::Add(high0, high1))));
#endif
  for (; i < words; ++i) total += key[i] * LoadElement<uint32_t>(data, i);
  return total;
}

/// The number of blocks that are summed together, so that each vector of the key is loaded only
/// once.
constexpr size_t kSumBlocks = 4;

/// sums[b] = sum of key * word over block b, for kSumBlocks whole consecutive blocks.
inline void SumBlocks(const DigestKey& key, const uint8_t* HWY_RESTRICT data,
                      uint64_t* HWY_RESTRICT sums) {
#if HWY_TARGET == HWY_SCALAR
  for (size_t b = 0; b < kSumBlocks; ++b) {
    sums[b] = SumWords(key.words(), data + b * DigestKey::kBlockBytes, DigestKey::kWordsPerBlock);
  }
#else
  const hn::ScalableTag<uint64_t> d64;
  const hn::Repartition<uint32_t, decltype(d64)> d32;
  const size_t lanes = hn::Lanes(d64);
  using V = hn::Vec<decltype(d64)>;
  V low0 = hn::Zero(d64), low1 = low0, low2 = low0, low3 = low0;
  V high0 = low0, high1 = low0, high2 = low0, high3 = low0;
  const auto* p = reinterpret_cast<const uint32_t*>(data);
  for (size_t i = 0; i < DigestKey::kWordsPerBlock; i += 2 * lanes) {
    const V k0 = hn::LoadU(d64, key.words() + i);
    const V k1 = hn::LoadU(d64, key.words() + i + lanes);
    // A 64-bit lane of data holds an even word in its low half and the next, odd word in its high
    // half. The keys are split likewise, so that both fit the lanes of the data.
    const auto even = hn::BitCast(d32, hn::ConcatEven(d64, k1, k0));
    const auto odd = hn::BitCast(d32, hn::ConcatOdd(d64, k1, k0));
    const auto even_high = hn::BitCast(d32, hn::ShiftRight<32>(hn::BitCast(d64, even)));
    const auto odd_high = hn::BitCast(d32, hn::ShiftRight<32>(hn::BitCast(d64, odd)));
    const auto add = [&](size_t block, V& low, V& high) HWY_ATTR {
      const auto* at = p + block * DigestKey::kWordsPerBlock + i;
      hwy::Prefetch(at + kSumBlocks * DigestKey::kWordsPerBlock);
      const auto w = hn::LoadU(d32, at);
      const auto w_odd = hn::BitCast(d32, hn::ShiftRight<32>(hn::BitCast(d64, w)));
      low = hn::Add(low, hn::Add(hn::MulEven(even, w), hn::MulEven(odd, w_odd)));
      high = hn::Add(high, hn::Add(hn::MulEven(even_high, w), hn::MulEven(odd_high, w_odd)));
    };
    add(0, low0, high0);
    add(1, low1, high1);
    add(2, low2, high2);
    add(3, low3, high3);
  }
  const auto sum = [&](V low, V high)
                       HWY_ATTR { return AddUpLanes(d64, hn::Add(low, hn::ShiftLeft<32>(high))); };
  sums[0] = sum(low0, high0);
  sums[1] = sum(low1, high1);
  sums[2] = sum(low2, high2);
  sums[3] = sum(low3, high3);
#endif
}

/// Sums key * word for a caller that reads the words a few at a time for another purpose. It holds
/// two sums per lane in registers. At most 8 lanes, so that 64 bytes are whole steps.
using SumTag = hn::CappedTag<uint64_t, 8>;
using SumLanes = hn::Vec<SumTag>;

template <size_t kWords>
HWY_INLINE void AddWords(const uint64_t* HWY_RESTRICT key, const uint8_t* HWY_RESTRICT data,
                         SumLanes& low, SumLanes& high) {
  const SumTag d64;
  static_assert(kWords % 8 == 0);
#if HWY_TARGET == HWY_SCALAR
  (void)high;
  uint64_t sum = hn::GetLane(low);
  for (size_t i = 0; i < kWords; ++i) sum += key[i] * LoadElement<uint32_t>(data, i);
  low = hn::Set(d64, sum);
#else
  const hn::Repartition<uint32_t, SumTag> d32;
  const hn::Rebind<uint32_t, SumTag> dhalf;
  const auto* p = reinterpret_cast<const uint32_t*>(data);
  for (size_t i = 0; i < kWords; i += hn::Lanes(d64)) {
    const auto k = hn::LoadU(d64, key + i);
    const auto w = hn::BitCast(d32, hn::PromoteTo(d64, hn::LoadU(dhalf, p + i)));
    low = hn::Add(low, hn::MulEven(hn::BitCast(d32, k), w));
    high = hn::Add(high, hn::MulEven(hn::BitCast(d32, hn::ShiftRight<32>(k)), w));
  }
#endif
}

HWY_INLINE uint64_t TakeSum(SumLanes& low, SumLanes& high) {
  const SumTag d64;
  const uint64_t total = AddUpLanes(d64, hn::Add(low, hn::ShiftLeft<32>(high)));
  low = high = hn::Zero(d64);
  return total;
}

/// Returns the digest of the `size` bytes at `offset` of the chunk. REQUIRES: `offset` is a
/// multiple of 4.
inline uint64_t RangeDigest(const DigestKey& key, const uint8_t* data, size_t size, size_t offset) {
  uint64_t digest = 0;
  constexpr size_t kTogether = kSumBlocks * DigestKey::kBlockBytes;
  while (size > 0) {
    if (offset % DigestKey::kBlockBytes == 0 && size >= kTogether) {
      uint64_t sums[kSumBlocks];
      SumBlocks(key, data, sums);
      for (size_t b = 0; b < kSumBlocks; ++b) {
        digest += key.multiplier(offset / DigestKey::kBlockBytes + b) * sums[b];
      }
      data += kTogether;
      offset += kTogether;
      size -= kTogether;
      continue;
    }
    const size_t in_block = offset % DigestKey::kBlockBytes;
    const size_t part = std::min(size, DigestKey::kBlockBytes - in_block);
    const uint64_t* words = key.words() + in_block / 4;
    uint64_t sum = SumWords(words, data, part / 4);
    if (part % 4 != 0) {
      uint32_t tail = 0;
      std::memcpy(&tail, data + part / 4 * 4, part % 4);
      sum += words[part / 4] * tail;
    }
    digest += key.multiplier(offset / DigestKey::kBlockBytes) * sum;
    data += part;
    offset += part;
    size -= part;
  }
  return digest;
}

/// Sums the digest's growth over the changes of one block of elements.
template <typename T>
class BlockDigest {
 public:
  BlockDigest(const DigestKey& key, size_t block)
      : words_(key.words()),
        multipliers_(key.multipliers() +
                     block * kBlockElements * sizeof(T) / DigestKey::kBlockBytes) {}

  HWY_INLINE void Step(size_t i, T o, T n) {
    const size_t at = i * sizeof(T);
    const uint64_t* k = words_ + at / 4 % DigestKey::kWordsPerBlock;
    const uint64_t multiplier = multipliers_[at / DigestKey::kBlockBytes];
    if constexpr (sizeof(T) == 8) {
      const uint64_t low = uint64_t{static_cast<uint32_t>(n)} - static_cast<uint32_t>(o);
      const uint64_t high = (n >> 32) - (o >> 32);
      sum_ += multiplier * (k[0] * low + k[1] * high);
    } else {
      sum_ += multiplier * (k[0] * ((uint64_t{n} - uint64_t{o}) << 8 * (at % 4)));
    }
  }

  uint64_t Sum() const { return sum_; }

  // Returns the key for the block's bytes themselves; `byte` counts from the block's begin.
  const uint64_t* WordsAt(size_t byte) const {
    return words_ + byte / 4 % DigestKey::kWordsPerBlock;
  }
  uint64_t MultiplierAt(size_t byte) const { return multipliers_[byte / DigestKey::kBlockBytes]; }
  /// Returns the part of bytes [first, last) of `data` in the digest. REQUIRES: they lie in one
  /// digest block.
  uint64_t Rest(const uint8_t* data, size_t first, size_t last) const {
    if (first == last) return 0;  // at the end of the largest chunk MultiplierAt would overrun
    uint64_t sum = 0;
    for (size_t at = first; at < last; at += 4) {
      uint32_t word = 0;
      std::memcpy(&word, data + at, std::min<size_t>(4, last - at));
      sum += *WordsAt(at) * word;
    }
    return sum * MultiplierAt(first);
  }

 private:
  static_assert(kBlockElements * sizeof(T) % DigestKey::kBlockBytes == 0);
  const uint64_t* words_;
  const uint64_t* multipliers_;  // from this block of elements on
  uint64_t sum_ = 0;
};

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAWIRE_KERNELS_CPU_HIGHWAY_DIGEST_INL_H_
