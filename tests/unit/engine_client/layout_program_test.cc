// Layout programs of an engine's memory: what they find against an element-by-element walk, and the
// boxes that they refuse.
#include "receiver/engine_client/layout_program.h"

#include <catch2/catch.hpp>
#include <map>
#include <random>

#include "tests/unit/engine_client/engine_memory.h"

namespace deltawire::engine {
namespace {

/// Where each run of `unit` bytes of the tensor stands, by a walk over the box.
std::map<uint64_t, uint64_t> Walk(const Box& box, uint64_t unit) {
  std::map<uint64_t, uint64_t> places;
  ForEachRunOf(box.copy, [&](uint64_t src, uint64_t dst) {
    for (uint64_t at = 0; at < box.copy.run_bytes; at += unit) places[src + at] = dst + at;
  });
  return places;
}

/// A box whose dimensions nest in the tensor, in an order that is not the memory's.
Box RandomBox(std::mt19937_64& random) {
  const auto below = [&](uint64_t n) { return random() % n; };
  std::vector<uint64_t> counts;
  std::vector<int64_t> src, dst;
  const uint64_t run = 2 * (1 + below(4));
  uint64_t src_span = run, dst_span = run;
  const size_t dims = below(4);
  for (size_t d = 0; d < dims; ++d) {
    counts.push_back(1 + below(5));
    src.push_back(static_cast<int64_t>(src_span + 2 * below(3)));
    dst.push_back(static_cast<int64_t>(dst_span + 2 * below(2)));
    src_span += (counts.back() - 1) * static_cast<uint64_t>(src.back());
    dst_span += (counts.back() - 1) * static_cast<uint64_t>(dst.back());
  }
  // The engine's order of the dimensions is another one than the tensor's.
  std::vector<size_t> order(dims);
  for (size_t d = 0; d < dims; ++d) order[d] = d;
  std::shuffle(order.begin(), order.end(), random);
  Box box = MakeBox(0, 0, {}, static_cast<int64_t>(2 * below(4)), {},
                    static_cast<int64_t>(2 * below(4)), {}, run);
  box.copy.dims = dims;
  for (size_t d = 0; d < dims; ++d) {
    box.copy.counts[d] = counts[order[d]];
    box.copy.src_strides[d] = src[order[d]];
    box.copy.dst_strides[d] = dst[order[d]];
  }
  return box;
}

TEST_CASE("layout program: a box finds every byte where a walk over its elements finds it") {
  const uint64_t seed = GENERATE(range(1, 300));
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  const Box box = RandomBox(random);
  const auto ordered = OrderedBox::Create(box, 1 << 16, 1 << 16, 2);
  REQUIRE(ordered.ok());
  const auto places = Walk(box, 2);
  CHECK(ordered->first() == places.begin()->first);
  CHECK(ordered->last() == places.rbegin()->first + 2);
  CHECK(ordered->bytes() == 2 * places.size());
  for (uint64_t at = 0; at < ordered->last() + 8; at += 2) {
    CAPTURE(at);
    const auto next = places.lower_bound(at);
    const Run run = ordered->RunAt(at);
    if (next == places.end()) {
      REQUIRE(run.bytes == 0);
      continue;
    }
    REQUIRE(run.bytes > 0);
    const uint64_t found = std::max(at, run.tensor_offset);
    REQUIRE(found == next->first);
    REQUIRE(run.storage_offset + (found - run.tensor_offset) == next->second);
  }
}

TEST_CASE("layout program: what no tensor has is counted, and a byte that two claim is refused") {
  EngineMemory engine;
  const Layout layout = receiver::FakeLayout();
  const auto program = LayoutProgram::Create(layout, engine.storages, engine.boxes);
  REQUIRE(program.ok());
  CHECK(program->unmapped(0) == 300);  // between t0 and t1, and at the end
  CHECK(program->unmapped(1) == 0);
  CHECK(program->unmapped(2) == 200);
  CHECK(program->several(4));
  CHECK_FALSE(program->several(3));
  CHECK(program->boxes(5).empty());

  engine.boxes.push_back(MakeBox(5, 0, {}, 0, {}, 998, {}, 4));
  const auto twice = LayoutProgram::Create(layout, engine.storages, engine.boxes);
  REQUIRE_FALSE(twice.ok());
  CHECK(twice.status().message() == "qkv: byte 998 is claimed twice, the second time by t5");
}

TEST_CASE("layout program: a box that could read or write elsewhere is refused") {
  const auto code = [](const Box& box) {
    return OrderedBox::Create(box, 1000, 1000, 2).status().code();
  };
  const auto kInvalid = StatusCode::kInvalidArgument;
  CHECK(code(MakeBox(0, 0, {}, 0, {}, 0, {}, 1000)) == StatusCode::kOk);
  CHECK(code(MakeBox(0, 0, {}, 2, {}, 0, {}, 1000)) == kInvalid);           // leaves the tensor
  CHECK(code(MakeBox(0, 0, {}, 0, {}, 2, {}, 1000)) == kInvalid);           // leaves the storage
  CHECK(code(MakeBox(0, 0, {}, -2, {}, 0, {}, 10)) == kInvalid);            // begins before it
  CHECK(code(MakeBox(0, 0, {2}, 10, {-4}, 10, {4}, 4)) == kInvalid);        // walks backwards
  CHECK(code(MakeBox(0, 0, {2}, 0, {2}, 0, {4}, 4)) == kInvalid);           // overlaps itself
  CHECK(code(MakeBox(0, 0, {2}, 0, {5}, 0, {4}, 4)) == kInvalid);           // cuts an element
  CHECK(code(MakeBox(0, 0, {0}, 0, {4}, 0, {4}, 4)) == kInvalid);           // is empty
  CHECK(code(MakeBox(0, 0, {1ull << 62}, 0, {8}, 0, {4}, 4)) == kInvalid);  // beyond all memory
}

}  // namespace
}  // namespace deltawire::engine
