#include "common/layout/coverage.h"

#include <catch2/catch.hpp>
#include <random>

#include "common/base/checksum.h"

namespace deltawire::coverage_test {
namespace {

Coverage Make(std::vector<ChunkRange> ranges, uint32_t chunks) {
  auto made = Coverage::Create(ranges, chunks);
  REQUIRE(made.status() == absl::OkStatus());
  return *made;
}

std::string Partition(const std::vector<NamedCoverage>& parts) {
  return std::string(MessageOf(CheckPartition(parts)));
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("coverage: no ranges are all chunks, neighbours are joined") {
  CHECK(Make({}, 5) == Coverage::All(5));
  CHECK(Make({{0, 2}, {2, 5}}, 5) == Coverage::All(5));
  CHECK(Coverage::All(5).all());
  CHECK(Make({}, 0).all());
  CHECK(Coverage::All(0) == Coverage());
  const Coverage some = Make({{1, 2}, {4, 6}, {6, 7}}, 9);
  CHECK_FALSE(some.all());
  CHECK(some.ranges() == std::vector<ChunkRange>{{1, 2}, {4, 7}});
  CHECK(some.size() == 4);
  CHECK(some.chunks() == 9);
  for (uint32_t c = 0; c < 12; ++c) CHECK(some.contains(c) == (c == 1 || (c >= 4 && c < 7)));
  for (uint32_t first = 0; first < 10; ++first) {
    for (uint32_t last = first; last < 11; ++last) {
      CAPTURE(first, last);
      bool any = false;
      for (uint32_t c = first; c < last; ++c) any |= some.contains(c);
      CHECK(some.Meets({first, last}) == any);
    }
  }
}

TEST_CASE("coverage: what is no list of ranges of the table is refused, and named") {
  const auto refused = [](std::vector<ChunkRange> ranges, const std::string& part) {
    const Status status = Coverage::Create(ranges, 10).status();
    CAPTURE(MessageOf(status), part);
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK(Has(std::string(MessageOf(status)), part));
  };
  refused({{3, 3}}, "[3, 3)");
  refused({{5, 4}}, "[5, 4)");
  refused({{0, 11}}, "[0, 11)");
  refused({{0, 4}, {3, 5}}, "[3, 5)");
  refused({{4, 5}, {0, 2}}, "[0, 2)");
  refused({{0, 1}, {0xfffffffe, 0xffffffff}}, "10 chunks");
}

TEST_CASE("coverage: bytes are those of the chunks, and the hash is of the documented words") {
  const Layout layout = *Layout::Create({{"a", DType::kBF16, {3 << 20}},  // 6 MiB: chunks 0, 1, 2
                                         {"none", DType::kF32, {0}},
                                         {"b", DType::kU8, {7}},            // chunk 3
                                         {"c", DType::kBF16, {1 << 20}}});  // chunk 4
  const ChunkTable table = *ChunkTable::Create(layout);
  REQUIRE(table.size() == 5);
  const Coverage some = Make({{1, 2}, {3, 5}}, 5);
  CHECK(some.bytes(table) == (2 << 20) + 7 + (2 << 20));
  const std::vector<ByteRange> bytes = some.ByteRanges(table);
  REQUIRE(bytes.size() == 2);
  CHECK(bytes[0] == ByteRange{2 << 20, 4 << 20});
  CHECK(bytes[1] == ByteRange{layout.offset(2), layout.offset(3) + (2 << 20)});
  const uint32_t words[] = {5, 1, 2, 3, 5};
  CHECK(some.hash() == Xxh3(std::as_bytes(std::span(words))));
  CHECK(some.hash() != Coverage::All(5).hash());
}

TEST_CASE("coverage: a partition is told from gaps and overlaps, which are named with agents") {
  CHECK(CheckPartition({{"a", Coverage::All(9)}}).ok());
  CHECK(CheckPartition({{"a", Make({{0, 2}, {5, 9}}, 9)}, {"b", Make({{2, 5}}, 9)}}).ok());
  const std::string gap = Partition({{"a", Make({{1, 2}}, 9)}, {"b", Make({{4, 6}}, 9)}});
  CAPTURE(gap);
  CHECK(Has(gap, "no agent has chunks [0, 1), [2, 4), [6, 9)"));
  CHECK_FALSE(Has(gap, "two agents"));
  CHECK(Has(gap, "(asked: a, b)"));
  const std::string both =
      Partition({{"a:1", Make({{0, 5}}, 9)}, {"b:2", Make({{3, 7}}, 9)}, {"c", Make({{4, 5}}, 9)}});
  CAPTURE(both);
  CHECK(Has(both, "[3, 5) of a:1 and b:2"));
  CHECK(Has(both, "[4, 5) of b:2 and c"));
  CHECK(Has(both, "no agent has chunks [7, 9)"));
  CHECK(Has(Partition({{"a", Coverage::All(9)}, {"b", Coverage::All(9)}}), "[0, 9) of a and b"));
}

TEST_CASE("coverage: a partition is judged like counting each chunk's owners") {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const auto chunks = static_cast<uint32_t>(1 + random() % 40);
    std::vector<int> owners(chunks);
    std::vector<std::vector<ChunkRange>> ranges(2 + random() % 3);
    for (uint32_t c = 0; c < chunks; ++c) {
      ranges[random() % ranges.size()].push_back({c, c + 1});
      ++owners[c];
    }
    // One part loses a chunk, or takes one that another part has already.
    if (random() % 2 == 0) {
      auto& part = ranges[random() % ranges.size()];
      const auto c = static_cast<uint32_t>(random() % chunks);
      const auto at = std::lower_bound(part.begin(), part.end(), c,
                                       [](ChunkRange r, uint32_t v) { return r.first < v; });
      const bool there = at != part.end() && at->first == c;
      owners[c] += there ? -1 : 1;
      there ? part.erase(at) : part.insert(at, {c, c + 1});
    }
    std::vector<NamedCoverage> parts;
    for (const auto& r : ranges) {
      if (!r.empty()) parts.push_back({"x", Make(r, chunks)});
    }
    if (parts.empty()) continue;
    const bool whole = std::all_of(owners.begin(), owners.end(), [](int n) { return n == 1; });
    CHECK(CheckPartition(parts).ok() == whole);
  }
}

}  // namespace deltawire::coverage_test
