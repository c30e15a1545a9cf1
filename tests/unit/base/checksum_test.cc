#include "common/base/checksum.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>

namespace deltawire::checksum_test {
namespace {

std::string Counting(size_t n) {
  std::string s(n, '\0');
  for (size_t i = 0; i < n; ++i) s[i] = static_cast<char>(i * 131 + (i >> 8));
  return s;
}

// The expected values come from the reference implementation's Python binding.
TEST_CASE("XXH3 checksums are those of the reference implementation") {
  CHECK(Xxh3({}) == 0x2d06800538d394c2);
  CHECK(Xxh3_128({}).Hex() == "99aa06d3014798d86001c324468d497f");
  CHECK(Xxh3(AsBytes("deltawire")) == 0x0eda2fee47f70cef);
  CHECK(Xxh3_128(AsBytes("deltawire")).Hex() == "cf216a14312a6a80d4b4a6f2fd16f17c");
  const std::string big = Counting(100'000);
  CHECK(Xxh3(AsBytes(big)) == 0x45169176f633139f);
  CHECK(Xxh3_128(AsBytes(big)).Hex() == "222a45d78d28b13645169176f633139f");
}

TEST_CASE("a hash in text form keeps its leading zeros, high half first") {
  CHECK(Hash128{.hi = 1, .lo = 0xab}.Hex() == "000000000000000100000000000000ab");
}

TEST_CASE("an incremental checksum does not depend on where the pieces end") {
  const auto seed = GENERATE(range(0u, 8u));
  CAPTURE(seed);
  std::mt19937 rng(seed);
  const std::string data = Counting(std::uniform_int_distribution<size_t>(0, 20'000)(rng));
  Xxh3Stream stream;
  stream.Update(AsBytes("left over"));
  stream.Reset();
  for (size_t at = 0; at < data.size();) {
    const size_t n =
        std::min(std::uniform_int_distribution<size_t>(0, 1'500)(rng), data.size() - at);
    stream.Update(AsBytes(data).subspan(at, n));
    at += n;
  }
  CHECK(stream.Digest() == Xxh3(AsBytes(data)));
  CHECK(stream.Digest() == Xxh3(AsBytes(data)));  // Digest must not change the stream
  Xxh3Stream moved = std::move(stream);
  moved.Update(AsBytes("x"));
  CHECK(moved.Digest() == Xxh3(AsBytes(data + "x")));
}

}  // namespace
}  // namespace deltawire::checksum_test
