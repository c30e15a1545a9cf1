// Which past deltas of a chunk both ends have, and the context that proves that they are the same.
#include "common/delta/chunk_history.h"

#include <catch2/catch.hpp>

#include "common/base/checksum.h"

namespace deltawire::chunk_history_test {
namespace {

std::shared_ptr<const Delta> Step(StateId from, StateId to,
                                  const std::vector<std::pair<uint32_t, std::string>>& chunks) {
  DeltaBuilder builder(1 << 20);
  for (const auto& [chunk, payload] : chunks) {
    ChunkDelta d;
    d.chunk = chunk;
    builder.Add(d, AsBytes(payload));
  }
  return builder.Finish(from, to);
}

// Chunk 0 changes in all three deltas. Chunk 1 changes in the second alone. Chunk 2 changes in all
// three, but goes whole in the second.
LogView Log() {
  return {Step({1, 1}, {1, 2}, {{0, "a"}, {2, "x"}}),
          Step({1, 2}, {1, 5}, {{0, "b"}, {1, "y"}, {2, ""}}),
          Step({1, 5}, {2, 2}, {{0, "c"}, {2, "z"}})};
}

}  // namespace

TEST_CASE("a chunk's history is its newest deltas, up to where it went whole") {
  const LogView log = Log();
  CHECK(ChunkHistory(log, 0, 8).depth() == 3);
  CHECK(ChunkHistory(log, 0, 2).depth() == 2);
  CHECK(ChunkHistory(log, 1, 8).depth() == 3);
  CHECK(ChunkHistory(log, 2, 8).depth() == 1);
  CHECK(ChunkHistory(log, 9, 8).depth() == 3);  // a chunk that never changed
  CHECK(ChunkHistory({}, 0, 8).depth() == 0);
  const ChunkHistory history(log, 1, 8);
  const kernels::History two = history.First(2);
  REQUIRE(two.deltas.size() == 2);
  CHECK(two.deltas[0].empty());
  CHECK(AsChars(two.deltas[1]) == "y");
}

TEST_CASE("the context is the low half of XXH3 over the payloads' XXH3, newest first") {
  const LogView log = Log();
  std::vector<std::byte> want(24);
  StoreLe<uint64_t>(&want[0], 0);
  StoreLe<uint64_t>(&want[8], Xxh3(AsBytes("y")));
  StoreLe<uint64_t>(&want[16], 0);
  const ChunkHistory history(log, 1, 8);
  CHECK(history.First(3).context == static_cast<uint32_t>(Xxh3(want)));
  CHECK(history.First(2).context == static_cast<uint32_t>(Xxh3(Bytes(want).first(16))));
  CHECK(history.First(0).deltas.empty());
  CHECK(ChunkHistory(log, 0, 8).First(3).context != history.First(3).context);
}

TEST_CASE("history in common ends where the two logs part") {
  const LogView log = Log();
  const auto depth = [&](StateId held, std::vector<StateId> before) {
    const auto common = CommonHistory(log, held, before);
    if (!common.empty()) CHECK(common.back()->to() == held);
    return common.size();
  };
  CHECK(depth({2, 2}, {{1, 5}, {1, 2}, {1, 1}}) == 3);
  CHECK(depth({2, 2}, {{1, 5}, {1, 2}, {1, 1}, {1, 0}}) == 3);
  CHECK(depth({2, 2}, {{1, 5}}) == 1);
  CHECK(depth({1, 5}, {{1, 2}}) == 1);
  CHECK(depth({1, 5}, {}) == 0);
  CHECK(depth({1, 5}, {{1, 1}}) == 0);          // {1, 1} to {1, 5} is two deltas in the log
  CHECK(depth({2, 2}, {{1, 5}, {1, 1}}) == 1);  // the older delta is not the log's
  CHECK(depth({1, 2}, {{1, 5}}) == 0);          // the log gets from {1, 5} to {2, 2}, not to {1, 2}
  CHECK(depth({1, 7}, {{1, 5}}) == 0);
  CHECK(CommonHistory({}, {1, 1}, std::vector<StateId>{{1, 0}}).empty());
}

TEST_CASE("a log may be bounded in deltas, and a chunk added twice is full") {
  DeltaLog log(1 << 20, 2);
  for (const auto& d : Log()) log.Append(d);
  REQUIRE(log.View().size() == 2);
  CHECK(log.View().front()->from() == StateId{1, 2});

  const auto twice = Step({1, 1}, {1, 2}, {{3, "a"}, {1, "b"}, {3, "c"}, {3, ""}});
  REQUIRE(twice->chunks().size() == 2);
  CHECK(twice->Find(3)->full);
  CHECK(twice->Find(3)->payload.empty());
  CHECK_FALSE(twice->Find(1)->full);
}

}  // namespace deltawire::chunk_history_test
