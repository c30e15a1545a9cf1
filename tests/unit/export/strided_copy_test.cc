// CopyStrided against a copy element by element, over random shapes, strides and widths.
#include "sender/export/client/strided_copy.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>
#include <random>

namespace deltawire::strided_copy_test {
namespace {

struct Case {
  std::vector<uint64_t> shape;
  std::vector<int64_t> to, from;  // strides, in bytes
  unsigned element = 1;
  std::vector<std::byte> source, target, want;
  size_t to_base = 0, from_base = 0;
};

using Random = std::mt19937_64;

/// Strides of `shape` in memory whose dimensions are in random order, padded, and perhaps reversed.
/// Returns the memory's size; `base` is where the first element lies.
size_t DrawStrides(const std::vector<uint64_t>& shape, unsigned element, bool plain, Random& random,
                   std::vector<int64_t>& strides, size_t& base) {
  std::vector<size_t> order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  if (!plain) std::shuffle(order.begin(), order.end(), random);
  strides.resize(shape.size());
  size_t bytes = element;
  base = 0;
  for (size_t k = shape.size(); k-- > 0;) {
    const size_t i = order[k];
    strides[i] = static_cast<int64_t>(bytes);
    if (!plain && random() % 4 == 0) {
      base += bytes * (shape[i] - 1);
      strides[i] = -strides[i];
    }
    bytes *= shape[i] + (plain ? 0 : random() % 3);
  }
  return bytes;
}

Case Draw(Random& random, uint64_t max_elements) {
  constexpr unsigned kWidths[] = {1, 2, 4, 8, 16};
  Case c;
  c.element = kWidths[random() % 5];
  uint64_t elements = 1;
  for (size_t i = random() % 5; i-- > 0;) {
    c.shape.push_back(1 + random() % std::min<uint64_t>(300, max_elements / elements));
    elements *= c.shape.back();
  }
  c.source.resize(DrawStrides(c.shape, c.element, random() % 3 == 0, random, c.from, c.from_base));
  c.target.resize(DrawStrides(c.shape, c.element, random() % 2 == 0, random, c.to, c.to_base));
  for (std::byte& b : c.source) b = static_cast<std::byte>(random());
  c.want = c.target;
  std::vector<uint64_t> at(c.shape.size());
  for (uint64_t e = 0; e < elements; ++e) {
    uint64_t rest = e;
    auto to = static_cast<int64_t>(c.to_base), from = static_cast<int64_t>(c.from_base);
    for (size_t i = c.shape.size(); i-- > 0;) {
      const auto k = static_cast<int64_t>(rest % c.shape[i]);
      rest /= c.shape[i];
      to += k * c.to[i];
      from += k * c.from[i];
    }
    std::memcpy(&c.want[static_cast<size_t>(to)], &c.source[static_cast<size_t>(from)], c.element);
  }
  return c;
}

void Check(Case& c, ThreadPool* pool) {
  CAPTURE(c.shape, c.to, c.from, c.element);
  CopyStrided(c.target.data() + c.to_base, c.to, c.source.data() + c.from_base, c.from, c.shape,
              c.element, pool);
  CHECK((c.target == c.want));
}

TEST_CASE("a strided copy is the copy of every element, and of nothing else") {
  ThreadPool pool(3);
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    Case c = Draw(random, seed % 50 == 0 ? 2'000'000 : 3000);
    Check(c, random() % 2 == 0 ? &pool : nullptr);
  }
}

TEST_CASE("a block copy, run by a kernel, is the same copy") {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    Case c = Draw(random, 3000);
    CAPTURE(c.shape, c.to, c.from, c.element);
    auto block = BlockCopyOf(c.to, c.source.data() + c.from_base, c.from, c.shape, c.element);
    REQUIRE(block.ok());
    // A kernel may read only from the source.
    REQUIRE(block->from.data() >= c.source.data());
    REQUIRE(block->from.data() + block->from.size() <= c.source.data() + c.source.size());
    block->copy.dst_offset = static_cast<int64_t>(c.to_base);
    kernels::Scalar().place(block->copy, block->from, c.target);
    CHECK((c.target == c.want));
  }
}

TEST_CASE("a block of more dimensions than a kernel takes is refused, merged ones are not") {
  const std::vector<uint64_t> shape(7, 2);
  const std::vector<int64_t> dense = {128, 64, 32, 16, 8, 4, 2};
  std::vector<int64_t> apart = dense;
  for (size_t i = 0; i < apart.size(); ++i) apart[i] *= static_cast<int64_t>(i % 2 == 0 ? 3 : 2);
  std::vector<std::byte> source(1000);
  CHECK(BlockCopyOf(dense, source.data(), dense, shape, 2).ok());
  const auto refused = BlockCopyOf(dense, source.data(), apart, shape, 2);
  CHECK(refused.status().code() == StatusCode::kUnimplemented);
}

TEST_CASE("long rows are cut and short ones grouped without a seam") {
  const unsigned element = GENERATE(1, 2, 4);
  CAPTURE(element);
  ThreadPool pool(3);
  for (const std::vector<uint64_t>& shape : {std::vector<uint64_t>{3'000'001},
                                             {2, 1'500'003},
                                             {5, 400'001},
                                             {70'001, 33},
                                             {1999, 2, 700}}) {
    Case c;
    c.shape = shape;
    c.element = element;
    Random random(7);
    std::vector<uint64_t> padded = shape;
    padded.back() += 1;  // rows of the source have a gap
    size_t unused = 0;
    const size_t from = DrawStrides(padded, element, true, random, c.from, unused);
    const size_t to = DrawStrides(shape, element, true, random, c.to, unused);
    c.source.resize(from);
    c.to_base = element;  // aligned to one element only
    c.target.resize(to + 2 * element);
    for (std::byte& b : c.source) b = static_cast<std::byte>(random());
    c.want.resize(c.target.size());
    const size_t row = shape.back() * element;
    for (size_t r = 0; r < to / row; ++r) {
      std::memcpy(&c.want[element + r * row], &c.source[r * (row + element)], row);
    }
    Check(c, &pool);
  }
}

TEST_CASE("a block without elements is left alone") {
  CopyStrided(nullptr, std::vector<int64_t>{8, 2}, nullptr, std::vector<int64_t>{8, 2},
              std::vector<uint64_t>{0, 4}, 2, nullptr);
}

}  // namespace
}  // namespace deltawire::strided_copy_test
