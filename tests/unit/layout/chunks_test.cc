#include "common/layout/chunks.h"

#include <catch2/catch.hpp>

#include "tests/support/layout_files.h"

namespace deltawire::chunks_test {
namespace {

Layout Make(std::vector<TensorMeta> tensors) { return Layout::Create(std::move(tensors)).value(); }

TEST_CASE("tensors are cut at multiples of the chunk size from their own start") {
  const Layout layout = Make({{"a", DType::kU8, {3}},
                              {"none", DType::kF32, {0, 9}},
                              {"exact", DType::kBF16, {kChunkBytes}},
                              {"more", DType::kF64, {kChunkBytes / 8 + 1}},
                              {"scalar", DType::kI16, {}}});
  const ChunkTable table = ChunkTable::Create(layout).value();
  const std::vector<std::tuple<uint64_t, uint32_t, uint32_t, int>> want = {
      {0, 3, 0, 1},
      {3, kChunkBytes, 2, 2},
      {3 + kChunkBytes, kChunkBytes, 2, 2},
      {3 + 2 * kChunkBytes, kChunkBytes, 3, 8},
      {3 + 3 * kChunkBytes, 8, 3, 8},
      {11 + 3 * kChunkBytes, 2, 4, 2},
  };
  REQUIRE(table.size() == want.size());
  for (uint32_t i = 0; i < table.size(); ++i) {
    CAPTURE(i);
    const Chunk& c = table[i];
    CHECK(std::tuple{c.offset, c.bytes, c.tensor, int{c.width}} == want[i]);
  }
  CHECK(table.first_of_tensor(0) == 0);
  CHECK(table.end_of_tensor(0) == 1);
  CHECK(table.first_of_tensor(1) == table.end_of_tensor(1));
  CHECK(table.first_of_tensor(3) == 3);
  CHECK(table.end_of_tensor(4) == 6);
}

TEST_CASE("chunks cover the data section once, in order, without splitting an element") {
  const auto seed = GENERATE(range(0u, 20u));
  CAPTURE(seed);
  std::mt19937 rng(seed);
  std::vector<TensorMeta> tensors = RandomTensors(rng);
  for (TensorMeta& t : tensors) t.shape.push_back(rng() % 900'000);
  const Layout layout = Make(std::move(tensors));
  const ChunkTable table = ChunkTable::Create(layout).value();
  uint64_t at = 0;
  uint32_t i = 0;
  for (size_t t = 0; t < layout.size(); ++t) {
    REQUIRE(table.first_of_tensor(t) == i);
    for (; i < table.end_of_tensor(t); ++i) {
      const Chunk& c = table[i];
      REQUIRE(c.offset == at);
      REQUIRE(c.tensor == t);
      REQUIRE(c.width == DTypeBytes(layout.tensor(t).dtype));
      REQUIRE((c.bytes > 0 && c.bytes <= kChunkBytes && c.bytes % c.width == 0));
      at += c.bytes;
    }
    REQUIRE(at == layout.offset(t) + layout.bytes(t));
  }
  CHECK(i == table.size());
}

TEST_CASE("a layout without bytes has no chunks") {
  CHECK(ChunkTable::Create(Make({})).value().size() == 0);
  const ChunkTable table = ChunkTable::Create(Make({{"n", DType::kU8, {0}}})).value();
  CHECK(table.size() == 0);
  CHECK(table.first_of_tensor(0) == 0);
  CHECK(table.end_of_tensor(0) == 0);
}

TEST_CASE("more chunks than a chunk number can name are refused before memory is taken") {
  const auto table = ChunkTable::Create(Make({{"huge", DType::kU8, {uint64_t{1} << 53}}}));
  REQUIRE_FALSE(table.ok());
  CHECK_THAT(std::string(MessageOf(table.status())), Catch::Contains("4294967296 chunks"));
}

}  // namespace
}  // namespace deltawire::chunks_test
