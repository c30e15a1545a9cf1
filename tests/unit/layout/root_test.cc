// The root of a state: its definition, its example in the format document, and that the roots of
// parts add up to the root of the whole.
#include "common/layout/root.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <random>
#include <regex>
#include <set>
#include <string>

namespace deltawire::root_test {
namespace {

std::vector<uint64_t> RandomDigests(size_t n, std::mt19937_64& random) {
  std::vector<uint64_t> digests(n);
  for (uint64_t& d : digests) d = random();
  return digests;
}

TEST_CASE("the root's example in the format document is what this code computes") {
  std::ifstream file(DW_DELTA_DOC);
  REQUIRE(file.good());
  std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t section = text.find("\n### root, an example\n");
  REQUIRE(section != std::string::npos);
  text.erase(0, section);
  const std::regex row(R"(\| (\d+) \| `(\w{16})` \| `(\w{16})` \| `(\w{16})` \|)");
  std::vector<uint64_t> digests;
  for (std::sregex_iterator it(text.begin(), text.end(), row), end; it != end; ++it) {
    const auto hex = [&it](size_t i) { return std::stoull((*it)[i].str(), nullptr, 16); };
    const auto chunk = static_cast<uint32_t>(std::stoul((*it)[1].str()));
    REQUIRE(chunk == digests.size());
    digests.push_back(hex(2));
    CHECK(RootTerm(chunk, hex(2)) == hex(3));
    CHECK(RootOf(digests, Coverage::All(chunk + 1)) == hex(4));
  }
  CHECK(digests.size() == 3);
}

TEST_CASE("the root follows changed chunks and parts add up to it") {
  const uint64_t seed = 17;
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  for (const uint32_t n : {1u, 2u, 7u, 300u}) {
    CAPTURE(n);
    std::vector<uint64_t> digests = RandomDigests(n, random);
    uint64_t root = RootOf(digests, Coverage::All(n));
    for (int step = 0; step < 20; ++step) {
      const auto c = static_cast<uint32_t>(random() % n);
      const uint64_t digest = random();
      root += RootTerm(c, digest) - RootTerm(c, digests[c]);
      digests[c] = digest;
      REQUIRE(root == RootOf(digests, Coverage::All(n)));
    }
    const auto cut = static_cast<uint32_t>(random() % n);
    uint64_t sum = 0;
    for (const ChunkRange& range : {ChunkRange{0, cut}, ChunkRange{cut, n}}) {
      if (range.first == range.last) continue;
      sum += RootOf(digests, *Coverage::Create({{range}}, n));
    }
    CHECK(sum == root);
  }
  CHECK(RootOf({}, Coverage()) == 0);
}

TEST_CASE("the root changes when two chunks swap digests or change them by opposite amounts") {
  const uint64_t seed = 18;
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  std::vector<uint64_t> digests = RandomDigests(64, random);
  const Coverage all = Coverage::All(64);
  std::set<uint64_t> seen = {RootOf(digests, all)};
  size_t states = 1;
  const auto record = [&] {
    seen.insert(RootOf(digests, all));
    ++states;
  };
  for (size_t i = 0; i + 1 < digests.size(); ++i) {
    std::swap(digests[i], digests[i + 1]);
    record();
    std::swap(digests[i], digests[i + 1]);
    const uint64_t by = uint64_t{1} << i;
    digests[i] += by;
    digests[i + 1] -= by;
    record();
    digests[i] -= by;
    digests[i + 1] += by;
  }
  CHECK(seen.size() == states);
}

}  // namespace
}  // namespace deltawire::root_test
