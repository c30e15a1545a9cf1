// place and place_convert of every backend against the oracle: strides, widths, misalignment and
// transpositions; no byte outside of the runs may be written. Also pieces, clips and joins of
// copies.
#include <catch2/catch.hpp>
#include <numeric>

#include "kernels/place_pieces.h"
#include "tests/unit/kernels/kernel_data.h"

namespace deltawire::kernels::test::place_kernels_test {
namespace {

/// A copy, and the bytes that its source and destination must have.
struct Case {
  StridedCopy copy;
  Convert convert;
  size_t src_bytes = 0, dst_bytes = 0;
};

/// Nests the dimensions in the given order, with gaps around some, and walks some of them
/// backwards. Returns how many bytes they need.
size_t LayOut(Random& random, StridedCopy& c, std::span<const size_t> inner_first, size_t run,
              size_t width, bool gaps, int64_t* offset, int64_t* strides) {
  const auto gap = [&] {
    return gaps && random.Chance(0.3) ? static_cast<int64_t>(random.Below(3) * width) : 0;
  };
  auto size = static_cast<int64_t>(run) + gap();
  *offset = static_cast<int64_t>(random.Below(70));
  for (const size_t d : inner_first) {
    strides[d] = size;
    size = size * static_cast<int64_t>(c.counts[d]) + gap();
    if (!random.Chance(0.15)) continue;
    *offset += strides[d] * static_cast<int64_t>(c.counts[d] - 1);
    strides[d] = -strides[d];
  }
  return static_cast<size_t>(size) + 140;
}

void Shuffle(Random& random, std::span<size_t> order) {
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
}

/// A random copy. Where it does not convert, elements are `width` bytes wide.
Case RandomCase(Random& random, const Convert& convert, size_t width, bool large) {
  Case t;
  t.convert = convert;
  const size_t from = convert.moves_only() ? width : WidthOf(convert.from);
  const size_t to = convert.moves_only() ? width : WidthOf(convert.to);
  StridedCopy& c = t.copy;
  const size_t elements = random.Chance(0.5) ? 1 : 1 + random.Below(random.Chance(0.2) ? 700 : 40);
  c.run_bytes = elements * to;
  c.dims = random.Below(StridedCopy::kMaxDims + 1);
  size_t budget = (large ? 600'000 : 20'000) / elements + 1;
  size_t order[StridedCopy::kMaxDims];
  std::iota(order, order + c.dims, size_t{0});
  for (size_t i = 0; i < c.dims; ++i) {
    const size_t most = std::min<size_t>(budget, random.Chance(0.4) ? 400 : 5);
    c.counts[i] = 1 + random.Below(most);
    budget = std::max<size_t>(1, budget / c.counts[i]);
  }
  Shuffle(random, {order, c.dims});
  t.src_bytes = LayOut(random, c, {order, c.dims}, elements * from, from, random.Chance(0.5),
                       &c.src_offset, c.src_strides);
  if (random.Chance(0.8)) Shuffle(random, {order, c.dims});
  t.dst_bytes = LayOut(random, c, {order, c.dims}, elements * to, to, random.Chance(0.5),
                       &c.dst_offset, c.dst_strides);
  return t;
}

/// Checks that every backend, in one call and in pieces, writes the oracle's bytes and no others.
void CheckCase(const Case& t, Random& random) {
  Buffer src(t.src_bytes, random.Below(64)), before(t.dst_bytes);
  src.Fill(random);
  before.Fill(random);
  Buffer expected(t.dst_bytes);  // as a copy of `before` GCC 12 would warn
  std::memcpy(expected.data(), before.data(), t.dst_bytes);
  Scalar().place_convert(t.copy, t.convert, src, expected);
  const size_t skew = random.Below(64);
  const CopyPieces pieces(t.copy, t.convert, 1 + random.Below(2 * CopiedBytes(t.copy) + 1));
  for (const Backend* backend : All()) {
    CAPTURE(backend->name);
    Buffer dst(before, skew);
    backend->place_convert(t.copy, t.convert, src, dst);
    REQUIRE(Equal(dst, expected));
    if (backend != &Best()) continue;
    Buffer in_pieces(before, skew);
    for (size_t i = pieces.count(); i-- > 0;) {
      backend->place_convert(pieces[i], t.convert, src, in_pieces);
    }
    CAPTURE(pieces.count());
    REQUIRE(Equal(in_pieces, expected));
  }
}

constexpr Element kNumbers[] = {Element::kBF16, Element::kF16, Element::kF32};

std::vector<Convert> Conversions() {
  std::vector<Convert> all;
  for (const Element from : kNumbers) {
    for (const Element to : kNumbers) {
      for (const int add : {-1, 0, 1}) all.push_back({from, to, static_cast<int8_t>(add)});
    }
  }
  return all;
}

TEST_CASE("Random copies of every width equal the oracle") {
  const uint64_t seed = 401;
  Random random(seed);
  for (int round = 0; round < 1200; ++round) {
    CAPTURE(seed, round);
    CheckCase(RandomCase(random, {}, kWidths[round % 4], round % 40 < 4), random);
  }
}

TEST_CASE("Random conversions equal the oracle") {
  const uint64_t seed = 402;
  Random random(seed);
  const std::vector<Convert> all = Conversions();
  for (size_t round = 0; round < 1350; ++round) {
    CAPTURE(seed, round);
    CheckCase(RandomCase(random, all[round % all.size()], 2, round % 90 < 3), random);
  }
}

/// dst[r][c] = src[c][r] for each of `experts` matrices, which are dense on both sides behind
/// offsets.
Case Transposed(uint64_t rows, uint64_t columns, uint64_t experts, const Convert& convert,
                size_t width) {
  Case t;
  t.convert = convert;
  const auto from = static_cast<int64_t>(convert.moves_only() ? width : WidthOf(convert.from));
  const auto to = static_cast<int64_t>(convert.moves_only() ? width : WidthOf(convert.to));
  const auto high = static_cast<int64_t>(rows), wide = static_cast<int64_t>(columns);
  StridedCopy& c = t.copy;
  c.run_bytes = static_cast<size_t>(to);
  c.dims = 3;
  c.counts[0] = experts, c.counts[1] = columns, c.counts[2] = rows;
  c.src_strides[0] = high * wide * from, c.dst_strides[0] = high * wide * to;
  c.src_strides[1] = high * from, c.dst_strides[1] = to;
  c.src_strides[2] = from, c.dst_strides[2] = wide * to;
  c.src_offset = 3, c.dst_offset = 62;
  t.src_bytes = static_cast<size_t>(high * wide * from) * experts + 5;
  t.dst_bytes = static_cast<size_t>(high * wide * to) * experts + 99;
  return t;
}

TEST_CASE("Transpositions equal the oracle") {
  const uint64_t seed = 403;
  Random random(seed);
  static constexpr uint64_t kSides[] = {1, 2, 7, 8, 9, 16, 31, 64, 65, 127, 128, 129, 300};
  for (const uint64_t rows : kSides) {
    for (const uint64_t columns : kSides) {
      CAPTURE(seed, rows, columns);
      for (const unsigned width : kWidths) {
        CheckCase(Transposed(rows, columns, 1 + random.Below(2), {}, width), random);
      }
      const Convert convert = Conversions()[random.Below(27)];
      CheckCase(Transposed(rows, columns, 1, convert, 2), random);
    }
  }
  // Copies of kStreamBytes and more are written past the cache, by code of their own.
  for (const unsigned width : kWidths) CheckCase(Transposed(700, 900, 1, {}, width), random);
  for (const Convert& convert : Conversions()) {
    CheckCase(Transposed(520, 610, 1, convert, 2), random);
  }
}

/// The copy of gate (half 0) or up (half 1), [inner, hidden] each, to every other column of a
/// [hidden, 2 inner] matrix; with `back`, the copy from there.
StridedCopy Half(int64_t half, int64_t inner, int64_t hidden, int64_t width, bool back) {
  StridedCopy c;
  c.run_bytes = static_cast<size_t>(width);
  c.dims = 2;
  c.counts[0] = static_cast<uint64_t>(inner), c.counts[1] = static_cast<uint64_t>(hidden);
  int64_t* const apart = back ? c.dst_strides : c.src_strides;
  int64_t* const turns = back ? c.src_strides : c.dst_strides;
  apart[0] = hidden * width, apart[1] = width;
  turns[0] = 2 * width, turns[1] = 2 * inner * width;
  (back ? c.dst_offset : c.src_offset) = half * inner * hidden * width;
  (back ? c.src_offset : c.dst_offset) = half * width;
  return c;
}

TEST_CASE("Columns in turn equal the oracle joined and apart") {
  const uint64_t seed = 404;
  Random random(seed);
  for (const bool back : {false, true}) {
    for (const int64_t width : {1, 2, 4, 8}) {
      for (const int64_t inner : {5, 64, 200, 333}) {
        const int64_t hidden = 700 / inner * 50 + 9;
        CAPTURE(seed, back, width, inner, hidden);
        const StridedCopy gate = Half(0, inner, hidden, width, back);
        const StridedCopy up = Half(1, inner, hidden, width, back);
        StridedCopy both;
        REQUIRE(JoinCopies(gate, up, &both));
        const auto bytes = static_cast<size_t>(2 * inner * hidden * width);
        REQUIRE(CopiedBytes(both) == bytes);
        CheckCase({gate, {}, bytes, bytes}, random);
        CheckCase({up, {}, bytes, bytes}, random);
        CheckCase({both, {}, bytes, bytes}, random);
        Buffer src(bytes), apart(bytes), joined(bytes);
        src.Fill(random);
        Scalar().place(gate, src, apart);
        Scalar().place(up, src, apart);
        Best().place(both, src, joined);
        REQUIRE(Equal(apart, joined));
      }
    }
  }
}

TEST_CASE("Copies of other shapes are not joined") {
  const StridedCopy gate = Half(0, 8, 8, 2, false);
  StridedCopy up = Half(1, 8, 8, 2, false), joined;
  up.dst_strides[1] += 2;
  CHECK_FALSE(JoinCopies(gate, up, &joined));
  up = Half(1, 8, 8, 2, false);
  up.counts[0] = 7;
  CHECK_FALSE(JoinCopies(gate, up, &joined));
  up = Half(1, 8, 8, 2, false);
  up.run_bytes = 1;
  CHECK_FALSE(JoinCopies(gate, up, &joined));
  StridedCopy full;
  full.dims = StridedCopy::kMaxDims;
  CHECK_FALSE(JoinCopies(full, full, &joined));
  CHECK(joined.dims == 0);
}

TEST_CASE("Long runs beyond the cache equal the oracle") {
  const uint64_t seed = 405;
  Random random(seed);
  for (const size_t run : {100, 256, 1440, 4096, 70'001}) {
    Case t;
    t.copy.run_bytes = run;
    t.copy.dims = 1;
    t.copy.counts[0] = kStreamBytes / run + 3;
    t.copy.src_strides[0] = static_cast<int64_t>(run + 37);
    t.copy.dst_strides[0] = static_cast<int64_t>(run + 5);
    t.src_bytes = t.dst_bytes = t.copy.counts[0] * (run + 37);
    CAPTURE(seed, run);
    CheckCase(t, random);
  }
  for (const Convert& convert : Conversions()) {
    Case t;
    t.convert = convert;
    t.copy.run_bytes = kStreamBytes + 12;
    t.copy.dst_offset = static_cast<int64_t>(random.Below(2) + 2 * random.Below(30));
    t.src_bytes = 2 * kStreamBytes + 50;
    t.dst_bytes = kStreamBytes + 99;
    CheckCase(t, random);
  }
}

TEST_CASE("Pieces are even and as many as asked for") {
  const StridedCopy half = Half(0, 1024, 1024, 2, false);
  const CopyPieces pieces(half, {}, 256 << 10);
  REQUIRE(pieces.count() == 8);
  uint64_t bytes = 0;
  for (size_t i = 0; i < pieces.count(); ++i) {
    CHECK(CopiedBytes(pieces[i]) == (256 << 10));
    CHECK(pieces[i].src_offset == static_cast<int64_t>(i) * 128 * 2048);
    bytes += CopiedBytes(pieces[i]);
  }
  CHECK(bytes == CopiedBytes(half));
  StridedCopy whole;
  CHECK(CopyPieces(whole, {}, 100).count() == 0);
  whole.run_bytes = 1000;
  CHECK(CopyPieces(whole, {}, 1000).count() == 1);
  CHECK(CopyPieces(whole, {}, 0).count() == 16);
  // Where fp32 becomes bf16, a piece begins at the same element in source and destination.
  const CopyPieces narrowed(whole, {Element::kF32, Element::kBF16, 0}, 500);
  REQUIRE(narrowed.count() == 2);
  CHECK(narrowed[0].run_bytes == 512);
  CHECK(narrowed[1].dst_offset == 512);
  CHECK(narrowed[1].src_offset == 1024);
  CHECK(narrowed[1].run_bytes == 488);
}

/// The same copy with every dimension walked forward at the destination.
StridedCopy Forward(StridedCopy c) {
  for (size_t d = 0; d < c.dims; ++d) {
    if (c.dst_strides[d] > 0) continue;
    const auto back = static_cast<int64_t>(c.counts[d] - 1);
    c.src_offset += back * c.src_strides[d];
    c.dst_offset += back * c.dst_strides[d];
    c.src_strides[d] = -c.src_strides[d];
    c.dst_strides[d] = -c.dst_strides[d];
  }
  return c;
}

TEST_CASE("A copy that windows clip writes the same bytes, each in its window") {
  const uint64_t seed = 409;
  Random random(seed);
  const std::vector<Convert> all = Conversions();
  for (size_t round = 0; round < 600; ++round) {
    CAPTURE(seed, round);
    const Convert convert = round % 2 == 0 ? Convert() : all[round % all.size()];
    const Case t = RandomCase(random, convert, kWidths[round % 4], round % 40 < 2);
    const StridedCopy copy = Forward(t.copy);
    Buffer src(t.src_bytes), got(t.dst_bytes), expected(t.dst_bytes);
    src.Fill(random);
    got.Fill(random);
    std::memcpy(expected.data(), got.data(), t.dst_bytes);
    Scalar().place_convert(copy, convert, src, expected);
    const uint64_t step = convert.moves_only() ? 1 : WidthOf(convert.to);
    uint64_t bytes = 0;
    for (uint64_t first = 0; first < t.dst_bytes;) {
      // A window ends between elements.
      uint64_t last = first + 1 + random.Below(t.dst_bytes);
      last += (step - (last - static_cast<uint64_t>(copy.dst_offset) % step) % step) % step;
      const std::vector<StridedCopy> clips = ClipCopy(copy, convert, first, last);
      CHECK(clips.size() <= 1 + 2 * copy.dims);
      for (const StridedCopy& clip : clips) {
        CAPTURE(first, last);
        int64_t end = clip.dst_offset + static_cast<int64_t>(clip.run_bytes);
        for (size_t d = 0; d < clip.dims; ++d) {
          end += static_cast<int64_t>(clip.counts[d] - 1) * clip.dst_strides[d];
        }
        REQUIRE(clip.dst_offset >= static_cast<int64_t>(first));
        REQUIRE(end <= static_cast<int64_t>(last));
        bytes += CopiedBytes(clip);
        Scalar().place_convert(clip, convert, src, got);
      }
      first = last;
    }
    CHECK(bytes == CopiedBytes(copy));
    REQUIRE(Equal(got, expected));
  }
}

}  // namespace
}  // namespace deltawire::kernels::test::place_kernels_test
