#include "kernels/cpu/place.h"

#include <cstring>

#include "kernels/float_bits.h"

namespace deltawire::kernels {
namespace {

/// A copy of exactly kMaxDims dimensions (outer ones of count 1), innermost last.
struct Nest {
  size_t run_bytes;
  uint64_t counts[StridedCopy::kMaxDims];
  int64_t src[StridedCopy::kMaxDims];
  int64_t dst[StridedCopy::kMaxDims];
};

/// Drops dimensions of count 1 and merges those that continue one another.
Nest Merge(const StridedCopy& copy) {
  Nest n{copy.run_bytes, {}, {}, {}};
  size_t slot = StridedCopy::kMaxDims;  // the next one to fill is slot - 1
  for (size_t i = copy.dims; i-- > 0;) {
    const uint64_t count = copy.counts[i];
    const int64_t src = copy.src_strides[i], dst = copy.dst_strides[i];
    if (count == 1) continue;
    const bool innermost = slot == StridedCopy::kMaxDims;
    const auto run = static_cast<int64_t>(n.run_bytes);
    if (innermost && src == run && dst == run) {
      n.run_bytes *= count;
      continue;
    }
    if (!innermost) {
      const auto inner = static_cast<int64_t>(n.counts[slot]);
      if (src == n.src[slot] * inner && dst == n.dst[slot] * inner) {
        n.counts[slot] *= count;
        continue;
      }
    }
    --slot;
    n.counts[slot] = count;
    n.src[slot] = src;
    n.dst[slot] = dst;
  }
  while (slot > 0) n.counts[--slot] = 1;
  return n;
}

/// Run length known to the compiler: one or a few register moves.
template <size_t kRun>
struct FixedRun {
  explicit FixedRun(size_t) {}
  void operator()(std::byte* dst, const std::byte* src) const { std::memcpy(dst, src, kRun); }
};
struct AnyRun {
  explicit AnyRun(size_t n) : bytes(n) {}
  void operator()(std::byte* dst, const std::byte* src) const { std::memcpy(dst, src, bytes); }
  size_t bytes;
};

template <typename Run>
void Walk(const Nest& n, const std::byte* src, std::byte* dst) {
  const Run run(n.run_bytes);
  // Offsets, not pointers, are stepped: past the last run they may point outside of the span.
  constexpr size_t kOuter = StridedCopy::kMaxDims - 2;
  uint64_t at[kOuter] = {};
  for (;;) {
    int64_t s0 = 0, d0 = 0;
    for (size_t i = 0; i < kOuter; ++i) {
      s0 += static_cast<int64_t>(at[i]) * n.src[i];
      d0 += static_cast<int64_t>(at[i]) * n.dst[i];
    }
    for (uint64_t a = 0; a < n.counts[kOuter]; ++a, s0 += n.src[kOuter], d0 += n.dst[kOuter]) {
      int64_t s1 = s0, d1 = d0;
      for (uint64_t b = 0; b < n.counts[kOuter + 1];
           ++b, s1 += n.src[kOuter + 1], d1 += n.dst[kOuter + 1]) {
        run(dst + d1, src + s1);
      }
    }
    size_t i = kOuter;
    while (i > 0 && ++at[i - 1] == n.counts[i - 1]) at[--i] = 0;
    if (i == 0) return;
  }
}

bool Empty(const StridedCopy& copy) {
  for (size_t i = 0; i < copy.dims; ++i) {
    if (copy.counts[i] == 0) return true;
  }
  return copy.run_bytes == 0;
}

/// Calls run(to, from) for every run, in the copy's own order.
template <typename Run>
void NaiveRuns(const StridedCopy& copy, Bytes src, MutableBytes dst, const Run& run) {
  if (Empty(copy)) return;
  uint64_t at[StridedCopy::kMaxDims] = {};
  for (;;) {
    int64_t from = copy.src_offset, to = copy.dst_offset;
    for (size_t i = 0; i < copy.dims; ++i) {
      from += static_cast<int64_t>(at[i]) * copy.src_strides[i];
      to += static_cast<int64_t>(at[i]) * copy.dst_strides[i];
    }
    run(dst.data() + to, src.data() + from);
    size_t i = copy.dims;
    while (i > 0 && ++at[i - 1] == copy.counts[i - 1]) at[--i] = 0;
    if (i == 0) return;
  }
}

/// An element as fp32, by its bits.
uint32_t LoadNumber(Element e, const std::byte* p) {
  if (e == Element::kF32) {
    uint32_t v;
    std::memcpy(&v, p, 4);
    return v;
  }
  uint16_t v;
  std::memcpy(&v, p, 2);
  return e == Element::kBF16 ? F32FromBF16(v) : F32FromF16(v);
}

void StoreNumber(Element e, std::byte* p, uint32_t f) {
  if (e == Element::kF32) {
    std::memcpy(p, &f, 4);
    return;
  }
  const uint16_t v = e == Element::kBF16 ? BF16FromF32(f) : F16FromF32(f);
  std::memcpy(p, &v, 2);
}

uint32_t Added(uint32_t f, int add) { return add == 0 ? f : F32Plus(f, static_cast<float>(add)); }

}  // namespace

void PlaceNaive(const StridedCopy& copy, Bytes src, MutableBytes dst) {
  NaiveRuns(copy, src, dst,
            [&](std::byte* to, const std::byte* from) { std::memcpy(to, from, copy.run_bytes); });
}

void PlaceConvertNaive(const StridedCopy& copy, const Convert& convert, Bytes src,
                       MutableBytes dst) {
  if (convert.moves_only()) return PlaceNaive(copy, src, dst);
  const size_t elements = copy.run_bytes / WidthOf(convert.to);
  NaiveRuns(copy, src, dst, [&](std::byte* to, const std::byte* from) {
    for (size_t i = 0; i < elements; ++i) {
      StoreNumber(convert.to, to + i * WidthOf(convert.to),
                  Added(LoadNumber(convert.from, from + i * WidthOf(convert.from)), convert.add));
    }
  });
}

void PlaceFast(const StridedCopy& copy, Bytes src, MutableBytes dst) {
  if (Empty(copy)) return;
  const Nest n = Merge(copy);
  const std::byte* s = src.data() + copy.src_offset;
  std::byte* d = dst.data() + copy.dst_offset;
  switch (n.run_bytes) {
    case 1:
      return Walk<FixedRun<1>>(n, s, d);
    case 2:
      return Walk<FixedRun<2>>(n, s, d);
    case 4:
      return Walk<FixedRun<4>>(n, s, d);
    case 8:
      return Walk<FixedRun<8>>(n, s, d);
    case 16:
      return Walk<FixedRun<16>>(n, s, d);
    case 32:
      return Walk<FixedRun<32>>(n, s, d);
    case 64:
      return Walk<FixedRun<64>>(n, s, d);
    case 128:
      return Walk<FixedRun<128>>(n, s, d);
    default:
      return Walk<AnyRun>(n, s, d);
  }
}

}  // namespace deltawire::kernels
