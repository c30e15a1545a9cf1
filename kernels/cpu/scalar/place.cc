#include "kernels/cpu/scalar/place.h"

#include <cstring>

#include "kernels/float_bits.h"

namespace deltawire::kernels {
namespace {

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

}  // namespace deltawire::kernels
