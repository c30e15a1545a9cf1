// Layout programs of an engine's memory: their places compared with an element-by-element walk, and
// the boxes that they refuse.
#include "receiver/engine_client/layout_program.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>

#include "tests/unit/engine_client/engine_memory.h"

namespace deltawire::engine::layout_program_test {
namespace {

/// Where each `unit` bytes of the tensor stand in the storage, found by a walk over the box.
std::map<uint64_t, uint64_t> Walk(const Box& box, uint64_t unit) {
  std::map<uint64_t, uint64_t> places;
  testing::ForEachRunOf(box.copy, [&](uint64_t src, uint64_t dst) {
    for (uint64_t at = 0; at < box.copy.run_bytes; at += unit) places[src + at] = dst + at;
  });
  return places;
}

/// A random box whose dimensions nest in the tensor, but are not listed in that order.
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
  // The box lists its dimensions in any order.
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

/// A random box, and what OrderedBox makes of it.
struct RandomCase {
  explicit RandomCase(uint64_t seed) : random(seed) {}

  std::mt19937_64 random;
  const Box box = RandomBox(random);
  const StatusOr<OrderedBox> ordered = OrderedBox::Create(box, 1 << 16, 1 << 16, 2);
};

TEST_CASE("layout program: a box finds every byte where a walk over its elements finds it") {
  const uint64_t seed = GENERATE(range(1, 300));
  CAPTURE(seed);
  const RandomCase c(seed);
  const StatusOr<OrderedBox>& ordered = c.ordered;
  REQUIRE(ordered.ok());
  const auto places = Walk(c.box, 2);
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

TEST_CASE("layout program: the pieces of a box in a range are its bytes there, each once") {
  const uint64_t seed = GENERATE(range(1, 300));
  CAPTURE(seed);
  RandomCase c(seed);
  const StatusOr<OrderedBox>& ordered = c.ordered;
  REQUIRE(ordered.ok());
  CHECK(Walk({0, 0, ordered->copy()}, 2) == Walk(c.box, 2));
  for (int round = 0; round < 20; ++round) {
    const uint64_t begin = 2 * (c.random() % (ordered->last() / 2 + 4));
    const uint64_t end = begin + 2 * (c.random() % (ordered->last() / 2 + 4));
    CAPTURE(begin, end);
    std::map<uint64_t, uint64_t> wanted = Walk(c.box, 2), found;
    std::erase_if(wanted, [&](const auto& at) { return at.first < begin || at.first >= end; });
    std::vector<kernels::StridedCopy> pieces;
    ordered->Pieces(begin, end, &pieces);
    CHECK(pieces.size() <= 2 * c.box.copy.dims + 1);
    for (const kernels::StridedCopy& piece : pieces) {
      for (const auto& [from, to] : Walk({0, 0, piece}, 2)) {
        CHECK(found.emplace(from, to).second);
      }
    }
    CHECK(found == wanted);
  }
}

TEST_CASE("layout program: what no tensor has is counted, and a byte that two claim is refused") {
  EngineMemory engine;
  const Layout layout = receiver::FakeLayout();
  const auto program = LayoutProgram::Create(layout, engine.storages, engine.boxes);
  REQUIRE(program.ok());
  CHECK(program->unmapped(0) == 300);  // the bytes between t0 and t1, and those at the end
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

TEST_CASE("layout program: boxes are refused exactly where two elements would share a place") {
  const uint64_t seed = GENERATE(range(1, 400));
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t n) { return random() % n; };
  const Layout layout = receiver::FakeLayout();
  std::vector<Box> boxes;
  std::vector<uint32_t> taken(1000);
  bool shared = false;
  const size_t count = 1 + below(5);
  for (uint32_t t = 0; t < count; ++t) {
    // Strides of the place in any order, so that some boxes lie within others and in themselves.
    const std::vector<uint64_t> counts = {1 + below(4), 1 + below(5)};
    const auto outer = static_cast<int64_t>(2 * (1 + below(12)));
    const auto inner = static_cast<int64_t>(2 * (1 + below(12)));
    boxes.push_back(MakeBox(t, 0, counts, 0, {100, 8}, static_cast<int64_t>(2 * below(200)),
                            {outer, inner}, 2 * (1 + below(3))));
    testing::ForEachRunOf(boxes.back().copy, [&](uint64_t, uint64_t dst) {
      for (size_t b = 0; b < boxes.back().copy.run_bytes; ++b) shared |= taken[dst + b]++ > 0;
    });
  }
  const auto program = LayoutProgram::Create(layout, {{"all", 1000}}, boxes);
  CAPTURE(program.status());
  REQUIRE(program.ok() != shared);
  if (shared) return;
  const auto holds = static_cast<uint64_t>(std::count(taken.begin(), taken.end(), 0u));
  CHECK(program->unmapped(0) == holds);
}

TEST_CASE("layout program: a box that spans others is compared with those behind them, too") {
  const Layout layout = receiver::FakeLayout();
  std::vector<Box> boxes = {MakeBox(0, 0, {3}, 0, {2}, 0, {100}, 2),  // at 0, 100 and 200
                            MakeBox(1, 0, {}, 0, {}, 10, {}, 4),
                            MakeBox(2, 0, {}, 0, {}, 110, {}, 4)};
  CHECK(LayoutProgram::Create(layout, {{"all", 300}}, boxes).ok());
  boxes.push_back(MakeBox(3, 0, {}, 0, {}, 200, {}, 2));
  CHECK(LayoutProgram::Create(layout, {{"all", 300}}, boxes).status().code() ==
        StatusCode::kInvalidArgument);
}

TEST_CASE("layout program: a tensor in several places is told apart from one that is cut") {
  const Layout layout = receiver::FakeLayout();
  const std::vector<Storage> storages = {{"all", 2000}};
  // Even and odd elements, whose spans overlap and whose elements do not; and one element twice.
  std::vector<Box> boxes = {MakeBox(0, 0, {250}, 0, {4}, 0, {2}, 2),
                            MakeBox(0, 0, {250}, 2, {4}, 500, {2}, 2)};
  CHECK_FALSE(LayoutProgram::Create(layout, storages, boxes)->several(0));
  boxes.push_back(MakeBox(0, 0, {}, 998, {}, 1000, {}, 2));
  CHECK(LayoutProgram::Create(layout, storages, boxes)->several(0));
}

TEST_CASE("layout program: a box that could read or write elsewhere is refused") {
  const auto code = [](const Box& box) {
    return OrderedBox::Create(box, 1000, 1000, 2).status().code();
  };
  const auto kInvalid = StatusCode::kInvalidArgument;
  CHECK(code(MakeBox(0, 0, {}, 0, {}, 0, {}, 1000)) == StatusCode::kOk);
  CHECK(code(MakeBox(0, 0, {}, 2, {}, 0, {}, 1000)) == kInvalid);           // leaves the tensor
  CHECK(code(MakeBox(0, 0, {}, 0, {}, 2, {}, 1000)) == kInvalid);           // leaves the storage
  CHECK(code(MakeBox(0, 0, {}, -2, {}, 0, {}, 10)) == kInvalid);            // before the tensor
  CHECK(code(MakeBox(0, 0, {2}, 10, {-4}, 10, {4}, 4)) == kInvalid);        // walks backwards
  CHECK(code(MakeBox(0, 0, {2}, 0, {2}, 0, {4}, 4)) == kInvalid);           // overlaps itself
  CHECK(code(MakeBox(0, 0, {2}, 0, {5}, 0, {4}, 4)) == kInvalid);           // cuts an element
  CHECK(code(MakeBox(0, 0, {0}, 0, {4}, 0, {4}, 4)) == kInvalid);           // is empty
  CHECK(code(MakeBox(0, 0, {1ull << 62}, 0, {8}, 0, {4}, 4)) == kInvalid);  // beyond all memory
}

}  // namespace
}  // namespace deltawire::engine::layout_program_test
