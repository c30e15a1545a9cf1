// Compares `place` of every backend with a loop nest that is written out by hand.
#include <catch2/catch.hpp>

#include "tests/unit/kernels/kernel_data.h"

namespace deltawire::kernels::test::place_test {
namespace {

void Reference(const StridedCopy& c, const Buffer& src, Buffer& dst, size_t dim, int64_t from,
               int64_t to) {
  if (dim < c.dims && dim < StridedCopy::kMaxDims) {
    for (uint64_t i = 0; i < c.counts[dim]; ++i) {
      const auto step = static_cast<int64_t>(i);
      Reference(c, src, dst, dim + 1, from + step * c.src_strides[dim],
                to + step * c.dst_strides[dim]);
    }
    return;
  }
  for (size_t i = 0; i < c.run_bytes; ++i) {
    dst.data()[to + static_cast<int64_t>(i)] = src.data()[from + static_cast<int64_t>(i)];
  }
}

void CheckPlace(const StridedCopy& copy, size_t src_bytes, size_t dst_bytes, Random& random) {
  Buffer src(src_bytes, 3), before(dst_bytes, 0);
  src.Fill(random);
  before.Fill(random);
  Buffer expected(before, 0);
  Reference(copy, src, expected, 0, copy.src_offset, copy.dst_offset);
  for (const Backend* backend : All()) {
    CAPTURE(backend->name);
    Buffer dst(before, 5);
    backend->place(copy, src, dst);
    REQUIRE(Equal(dst, expected));
  }
}

/// A random copy between two dense boxes. The destination may have the dimensions in another order,
/// and the source may be walked backwards.
StridedCopy RandomCopy(Random& random, size_t* bytes) {
  static constexpr size_t kRuns[] = {1, 2, 3, 4, 6, 8, 16, 24, 32, 64, 128, 100, 1000};
  StridedCopy c;
  c.run_bytes = kRuns[random.Below(std::size(kRuns))];
  c.dims = random.Below(StridedCopy::kMaxDims + 1);
  size_t order[StridedCopy::kMaxDims] = {0, 1, 2, 3, 4, 5};
  for (size_t i = 0; i < c.dims; ++i) c.counts[i] = 1 + random.Below(i < 4 ? 7 : 3);
  if (random.Below(2) != 0) {
    for (size_t i = c.dims; i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
  }
  int64_t src = static_cast<int64_t>(c.run_bytes), dst = src;
  for (size_t i = c.dims; i-- > 0;) {
    c.src_strides[i] = src;
    src *= static_cast<int64_t>(c.counts[i]);
    c.dst_strides[order[i]] = dst;
    dst *= static_cast<int64_t>(c.counts[order[i]]);
  }
  *bytes = static_cast<size_t>(src);
  for (size_t i = 0; i < c.dims; ++i) {
    if (random.Below(4) != 0) continue;  // walk this dimension of the source backwards
    c.src_offset += static_cast<int64_t>(c.counts[i] - 1) * c.src_strides[i];
    c.src_strides[i] = -c.src_strides[i];
  }
  return c;
}

TEST_CASE("Random strided copies equal a naive loop nest") {
  const uint64_t seed = 77;
  Random random(seed);
  for (int round = 0; round < 600; ++round) {
    size_t bytes = 0;
    const StridedCopy copy = RandomCopy(random, &bytes);
    CAPTURE(seed, round, copy.dims, copy.run_bytes);
    CheckPlace(copy, bytes, bytes, random);
  }
}

TEST_CASE("Copies with offsets and gaps and broadcasts and empty copies equal the loop nest") {
  Random random(78);
  StridedCopy rows;  // 100 bytes of each of 5 rows, from rows of 300 to rows of 120
  rows.src_offset = 17;
  rows.dst_offset = 9;
  rows.run_bytes = 100;
  rows.dims = 1;
  rows.counts[0] = 5;
  rows.src_strides[0] = 300;
  rows.dst_strides[0] = 120;
  CheckPlace(rows, 17 + 4 * 300 + 100, 9 + 4 * 120 + 100, random);
  rows.src_strides[0] = 0;  // the same row five times
  CheckPlace(rows, 117, 9 + 4 * 120 + 100, random);
  rows.counts[0] = 0;
  CheckPlace(rows, 117, 600, random);
  rows.counts[0] = 5;
  rows.run_bytes = 0;
  CheckPlace(rows, 117, 600, random);
  StridedCopy whole;
  whole.run_bytes = 4096;
  CheckPlace(whole, 4096, 4096, random);
}

}  // namespace
}  // namespace deltawire::kernels::test::place_test
