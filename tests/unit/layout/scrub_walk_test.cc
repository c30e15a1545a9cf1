#include "common/layout/scrub_walk.h"

#include <catch2/catch.hpp>

namespace deltawire::scrub_walk_test {
namespace {

using std::chrono::nanoseconds;
using std::chrono::seconds;

ChunkTable Chunks(std::vector<TensorMeta> tensors) {
  return *ChunkTable::Create(*Layout::Create(std::move(tensors)));
}

struct Turn {
  std::vector<uint32_t> chunks;
  nanoseconds pause{};
};

Turn Take(ScrubWalk& walk, const ChunkTable& chunks, uint64_t bytes_per_s) {
  Turn turn;
  turn.pause = walk.Next(chunks, bytes_per_s, [&](uint32_t c) {
    turn.chunks.push_back(c);
    return uint64_t{chunks[c].bytes};
  });
  return turn;
}

TEST_CASE("scrub walk: batches of chunks in turn, each followed by its time at the rate") {
  const ChunkTable chunks = Chunks({{"a", DType::kU8, {100}},
                                    {"b", DType::kU8, {100}},
                                    {"c", DType::kU8, {100}},
                                    {"d", DType::kU8, {100}},
                                    {"e", DType::kU8, {100}}});
  ScrubWalk walk(150);
  const std::vector<std::vector<uint32_t>> want = {{0, 1}, {2, 3}, {4, 0}, {1, 2}, {3, 4}, {0, 1}};
  for (const auto& batch : want) {
    const Turn turn = Take(walk, chunks, 50);
    CHECK(turn.chunks == batch);
    CHECK(turn.pause == seconds(4));
  }
}

TEST_CASE("scrub walk: a model that fits into one batch is walked once in half a second at most") {
  const ChunkTable chunks = Chunks({{"a", DType::kU8, {50}}, {"b", DType::kU8, {50}}});
  ScrubWalk walk(1 << 20);
  for (int n = 0; n < 3; ++n) {
    const Turn turn = Take(walk, chunks, uint64_t{1} << 30);
    CHECK(turn.chunks == std::vector<uint32_t>{0, 1});
    CHECK(turn.pause == ScrubWalk::kShortest);
    CHECK(Take(walk, chunks, 100).pause == seconds(1));
  }
  // Nothing is read of a model whose chunks belong to another part.
  CHECK(walk.Next(chunks, 1, [](uint32_t) { return uint64_t{0}; }) == ScrubWalk::kShortest);
  CHECK(Take(walk, Chunks({}), 1).pause == ScrubWalk::kShortest);
}

}  // namespace
}  // namespace deltawire::scrub_walk_test
