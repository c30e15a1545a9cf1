// One block's changes to streams and back, in batches that keep branches rare; once per target.
// Buffers live on the stack (about 130 KiB while encoding). Decoding never trusts the streams.
#include "hwy/highway.h"
#include "kernels/cpu/payload.h"

#if defined(DELTAWIRE_KERNELS_CPU_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_BLOCK_INL_H_
#undef DELTAWIRE_KERNELS_CPU_BLOCK_INL_H_
#else
#define DELTAWIRE_KERNELS_CPU_BLOCK_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Appends the positions of `bits`' ones to `out` (room for 64) and returns how many.
HWY_INLINE size_t AppendPositions(uint64_t bits, uint32_t base, uint32_t* out) {
  const auto count = static_cast<size_t>(std::popcount(bits));
  // Four at a time, needed or not: cheaper than a branch per bit.
  for (size_t i = 0;; i += 4) {
    for (size_t j = 0; j < 4; ++j) {
      out[i + j] = base + static_cast<uint32_t>(std::countr_zero(bits));
      bits &= bits - 1;
    }
    if (HWY_LIKELY(i + 4 >= count)) return count;
  }
}

/// The streams of one block while they grow: wide ones in place, gaps and codes beside.
template <typename T>
class SparseStreams {
 public:
  /// REQUIRES: `wide` has room for every element of the block.
  explicit SparseStreams(uint8_t* wide) : wide_(wide) {}

  HWY_INLINE void Put(uint32_t at, T d) {
    uint32_t gap = at - next_;
    next_ = at + 1;
    while (HWY_UNLIKELY(gap >= kGapGoesOn)) {
      gaps_[gap_bytes_++] = static_cast<uint8_t>(kGapGoesOn);
      gap -= kGapGoesOn;
    }
    gaps_[gap_bytes_++] = static_cast<uint8_t>(gap);
    const unsigned code = CodeOf<T>(d);
    codes_[changed_++] = static_cast<uint8_t>(code);
    if constexpr (sizeof(T) > 1) {
      StoreElement<T>(wide_, wide_count_, d);  // kept only if the count moves on
      wide_count_ += code == kCodeWide;
    }
  }
  uint32_t changed() const { return changed_; }
  size_t bytes() const { return size_t{wide_count_} * sizeof(T) + gap_bytes_ + changed_; }

  /// Moves gaps and codes behind the wide stream.
  BlockEntry Finish() {
    if (changed_ == 0) return {};
    uint8_t* gaps = wide_ + size_t{wide_count_} * sizeof(T);
    std::memcpy(gaps, gaps_, gap_bytes_);
    std::memcpy(gaps + gap_bytes_, codes_, changed_);
    return {BlockCodec::kSparse, changed_, wide_count_, gap_bytes_};
  }

 private:
  uint8_t* wide_;
  uint32_t next_ = 0;
  uint32_t changed_ = 0;
  uint32_t gap_bytes_ = 0;
  uint32_t wide_count_ = 0;
  uint8_t gaps_[kBlockElements + kMaxGapBytesExtra];
  uint8_t codes_[kBlockElements];
};

/// Turns gap bytes into positions, a batch at a time.
class GapReader {
 public:
  static constexpr size_t kBatch = 64;
  struct Batch {
    uint32_t positions[kBatch];
    size_t count;
  };

  GapReader(const uint8_t* gaps, size_t gap_bytes, size_t elements)
      : gaps_(gaps), left_(gap_bytes), elements_(elements) {}
  bool done() const { return left_ == 0; }

  /// False when a position would lie outside of the block.
  HWY_INLINE bool Next(Batch& batch) {
    const size_t bytes = std::min(kBatch, left_);
    uint32_t at = at_, found = 0;
    for (size_t i = 0; i < bytes; ++i) {
      const uint32_t gap = gaps_[i];
      const uint32_t ends = gap != kGapGoesOn;
      at += gap;
      batch.positions[found] = at;
      found += ends;
      at += ends;
    }
    batch.count = found;
    gaps_ += bytes;
    left_ -= bytes;
    at_ = at;
    return at <= elements_;  // positions only grow, so the last one speaks for all
  }

 private:
  const uint8_t* gaps_;
  size_t left_;
  size_t elements_;
  uint32_t at_ = 0;
};

/// Walks a sparse block: hands `sink` every change (Change(i, d)), well after Prefetch(i).
/// False when the streams are malformed; `sink` never sees an index outside of the block.
template <typename T, typename Sink>
HWY_INLINE bool WalkSparse(const BlockEntry& e, const uint8_t* streams, size_t elements,
                           Sink& sink) {
  const uint8_t* gaps = streams + size_t{e.wide} * sizeof(T);
  const uint8_t* codes = gaps + e.gap_bytes;
  GapReader reader(gaps, e.gap_bytes, elements);
  GapReader::Batch batches[2];
  uint32_t used = 0, wide = 0;
  // One batch is fetched into the cache while the one before it is applied.
  if (!reader.Next(batches[0])) return false;
  for (size_t k = 0;; ++k) {
    const GapReader::Batch& batch = batches[k % 2];
    GapReader::Batch& ahead = batches[(k + 1) % 2];
    const bool more = !reader.done();
    if (more) {
      if (!reader.Next(ahead)) return false;
      for (size_t i = 0; i < ahead.count; ++i) sink.Prefetch(ahead.positions[i]);
    }
    if (e.changed - used < batch.count) return false;
    for (size_t i = 0; i < batch.count; ++i) {
      const unsigned code = codes[used + i];
      T d = DifferenceOf<T>(code);
      if constexpr (sizeof(T) > 1) {
        if (HWY_UNLIKELY(code == kCodeWide)) {
          if (wide == e.wide) return false;
          d = LoadElement<T>(streams, wide++);
        }
      }
      sink.Change(batch.positions[i], d);
    }
    used += static_cast<uint32_t>(batch.count);
    if (!more) break;
  }
  return used == e.changed && wide == e.wide;
}

/// out[i] = a[i] - b[i]; returns how many differ.
template <typename T>
inline uint32_t Subtract(const uint8_t* a, const uint8_t* b, uint8_t* out, size_t elements) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0, changed = 0;
  for (; i + lanes <= elements; i += lanes) {
    const auto va = hn::LoadU(d, reinterpret_cast<const T*>(a) + i);
    const auto vb = hn::LoadU(d, reinterpret_cast<const T*>(b) + i);
    hn::StoreU(hn::Sub(va, vb), d, reinterpret_cast<T*>(out) + i);
    changed += hn::CountTrue(d, hn::Ne(va, vb));
  }
  for (; i < elements; ++i) {
    const T x = LoadElement<T>(a, i), y = LoadElement<T>(b, i);
    StoreElement<T>(out, i, static_cast<T>(x - y));
    changed += x != y;
  }
  return static_cast<uint32_t>(changed);
}

/// data[i] += diffs[i].
template <typename T>
inline void AddAll(const uint8_t* diffs, uint8_t* data, size_t elements) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  T* p = reinterpret_cast<T*>(data);
  size_t i = 0;
  for (; i + lanes <= elements; i += lanes) {
    const auto v = hn::LoadU(d, reinterpret_cast<const T*>(diffs) + i);
    hn::StoreU(hn::Add(hn::LoadU(d, p + i), v), d, p + i);
  }
  for (; i < elements; ++i) {
    const T sum = static_cast<T>(LoadElement<T>(data, i) + LoadElement<T>(diffs, i));
    StoreElement<T>(data, i, sum);
  }
}

/// One bit per element of 64: set where a and b differ.
template <typename T>
HWY_INLINE uint64_t Differing64(const uint8_t* a, const uint8_t* b) {
  const hn::CappedTag<T, 64> d;
  const size_t lanes = hn::Lanes(d);
  uint64_t bits = 0;
  for (size_t i = 0; i < 64; i += lanes) {
    const auto va = hn::LoadU(d, reinterpret_cast<const T*>(a) + i);
    const auto vb = hn::LoadU(d, reinterpret_cast<const T*>(b) + i);
    uint64_t part = 0;
    hn::StoreMaskBits(d, hn::Ne(va, vb), reinterpret_cast<uint8_t*>(&part));
    bits |= part << i;
  }
  return bits;
}

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAWIRE_KERNELS_CPU_BLOCK_INL_H_
