#include "kernels/cpu/place.h"

#include <cstring>

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
  int64_t s0 = 0, d0 = 0;
  for (uint64_t a = 0; a < n.counts[0]; ++a, s0 += n.src[0], d0 += n.dst[0]) {
    int64_t s1 = s0, d1 = d0;
    for (uint64_t b = 0; b < n.counts[1]; ++b, s1 += n.src[1], d1 += n.dst[1]) {
      int64_t s2 = s1, d2 = d1;
      for (uint64_t c = 0; c < n.counts[2]; ++c, s2 += n.src[2], d2 += n.dst[2]) {
        int64_t s3 = s2, d3 = d2;
        for (uint64_t d = 0; d < n.counts[3]; ++d, s3 += n.src[3], d3 += n.dst[3]) {
          run(dst + d3, src + s3);
        }
      }
    }
  }
}

bool Empty(const StridedCopy& copy) {
  for (size_t i = 0; i < copy.dims; ++i) {
    if (copy.counts[i] == 0) return true;
  }
  return copy.run_bytes == 0;
}

}  // namespace

void PlaceNaive(const StridedCopy& copy, Bytes src, MutableBytes dst) {
  if (Empty(copy)) return;
  uint64_t at[StridedCopy::kMaxDims] = {};
  for (;;) {
    int64_t from = copy.src_offset, to = copy.dst_offset;
    for (size_t i = 0; i < copy.dims; ++i) {
      from += static_cast<int64_t>(at[i]) * copy.src_strides[i];
      to += static_cast<int64_t>(at[i]) * copy.dst_strides[i];
    }
    std::memcpy(dst.data() + to, src.data() + from, copy.run_bytes);
    size_t i = copy.dims;
    while (i > 0 && ++at[i - 1] == copy.counts[i - 1]) at[--i] = 0;
    if (i == 0) return;
  }
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
