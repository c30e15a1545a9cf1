// The digest: its definition, its key, and the errors it must catch.
#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "tests/unit/kernels/kernel_data.h"

namespace deltawire::kernels::test::digest_test {
namespace {

TEST_CASE("The key is splitmix64 of the seed and its multipliers are odd") {
  // These are the reference outputs of splitmix64 for seed 0.
  const DigestKey zero(0);
  CHECK(zero.words()[0] == 0xe220a8397b1dcdaf);
  CHECK(zero.words()[1] == 0x6e789e6aa1b965f4);
  const uint64_t seed = 123456789;
  const DigestKey key(seed);
  Random reference(seed);
  for (size_t j = 0; j < DigestKey::kWordsPerBlock; ++j) {
    REQUIRE(key.words()[j] == reference.Next());
  }
  for (size_t b = 0; b < DigestKey::kMaxBlocks; ++b) {
    REQUIRE(key.multiplier(b) == (reference.Next() | 1));
  }
  CHECK(key.seed() == seed);
}

TEST_CASE("The digest follows its definition for every length of tail") {
  const DigestKey key(5);
  Random random(5);
  for (const Backend* backend : All()) {
    for (const size_t size : {0, 1, 2, 3, 4, 5, 63, 64, 65, 4095, 4096, 4097, 131073, 300001}) {
      Buffer data(size, size % 8);
      data.Fill(random);
      uint64_t expected = 0;
      for (size_t i = 0; i < size; ++i) {
        const uint64_t byte = static_cast<uint64_t>(data.data()[i]);
        expected += key.multiplier(i / 4096) * key.words()[i / 4 % 1024] * (byte << 8 * (i % 4));
      }
      CAPTURE(backend->name, size);
      CHECK(backend->digest(key, data) == expected);
    }
    const Buffer zeros(262144 + 2);
    CHECK(backend->digest(key, zeros) == 0);
  }
}

TEST_CASE("The digests of a chunk's parts add up however it is cut") {
  const uint64_t seed = 77;
  CAPTURE(seed);
  const DigestKey key(seed);
  Random random(seed);
  for (const Backend* backend : All()) {
    CAPTURE(backend->name);
    for (size_t trial = 0; trial < 60; ++trial) {
      const size_t size = random.Below(trial % 6 == 0 ? 400'000 : 20'000);
      Buffer data(size, random.Below(8));
      data.Fill(random);
      const uint64_t whole = Scalar().digest(key, data);
      // The parts are words, blocks of the digest, or anything in between, taken from the back.
      const size_t steps[] = {4, 64, 4096, 4 * (1 + random.Below(5000))};
      const size_t step = steps[random.Below(std::size(steps))];
      uint64_t sum = 0;
      size_t end = size, parts = 0;
      while (end > 0) {
        const size_t longest = (1 + random.Below(step / 4 * 2)) * 4;
        const size_t from = end <= longest ? 0 : (end - longest + 3) / 4 * 4;
        const Bytes part = Bytes(data).subspan(from, end - from);
        const uint64_t digest = backend->digest_range(key, part, from);
        REQUIRE(digest == Scalar().digest_range(key, part, from));
        sum += digest;
        end = from;
        ++parts;
      }
      CAPTURE(size, parts);
      CHECK(sum == whole);
      CHECK(backend->digest_range(key, data, 0) == whole);
    }
    CHECK(backend->digest_range(key, {}, 4096) == 0);
  }
}

TEST_CASE("The last bytes of the largest chunk have a digest of their own") {
  const DigestKey key(3);
  Random random(3);
  Buffer tail(8195);
  tail.Fill(random);
  const size_t offset = kMaxChunkBytes - 8196;
  Buffer chunk(offset + tail.size());
  std::memcpy(chunk.data() + offset, tail.data(), tail.size());  // the zeros before it add nothing
  for (const Backend* backend : All()) {
    CAPTURE(backend->name);
    CHECK(backend->digest_range(key, tail, offset) == Scalar().digest(key, chunk));
  }
}

TEST_CASE("Every single-bit error swap and shift of a chunk has a digest of its own") {
  const uint64_t seed = 31;
  CAPTURE(seed);
  const DigestKey key(seed);
  Random random(seed);
  Buffer data(300000);
  data.Fill(random);
  const uint64_t good = Best().digest(key, data);
  std::set<uint64_t> seen = {good};
  size_t errors = 1;
  const auto record = [&] {
    seen.insert(Best().digest(key, data));
    ++errors;
  };
  for (size_t i = 0; i < 400; ++i) {  // one bit of a word: its lowest or its highest
    std::byte& b = data.data()[i * 187 * 4 + (i % 2 != 0 ? 3 : 0)];
    const std::byte old = b;
    b ^= i % 2 != 0 ? std::byte{0x80} : std::byte{1};
    record();
    b = old;
  }
  // Two digest blocks are swapped; then the second one stands in both places.
  constexpr size_t kBlock = DigestKey::kBlockBytes;
  const std::vector<std::byte> first(data.data(), data.data() + kBlock);
  std::memcpy(data.data(), data.data() + kBlock, kBlock);
  std::memcpy(data.data() + kBlock, first.data(), kBlock);
  record();
  std::memcpy(data.data() + kBlock, data.data(), kBlock);
  record();
  std::memcpy(data.data(), first.data(), kBlock);
  for (const size_t shift : {1, 2, 4, 64, 4096}) {
    std::memmove(data.data() + shift, data.data(), data.size() - shift);
    record();
  }
  CHECK(seen.size() == errors);
}

TEST_CASE("The worst single error hides as often as the bound says and no more") {
  // The error 2^31 * odd in one word hides if the key word is a multiple of 2^33: count how many
  // trailing zeros key words have, over many seeds. The bound says 2^-n for n or more.
  size_t words = 0, zeros[12] = {};
  for (uint64_t seed = 0; seed < 16; ++seed) {
    const DigestKey key(seed);
    for (size_t j = 0; j < DigestKey::kWordsPerBlock; ++j, ++words) {
      for (size_t n = 0; n < std::size(zeros); ++n) {
        zeros[n] += (key.words()[j] & ((uint64_t{1} << n) - 1)) == 0;
      }
    }
  }
  for (size_t n = 0; n < std::size(zeros); ++n) {
    const double expected = static_cast<double>(words >> n);
    CAPTURE(n);
    // The count is binomial, and may be off by five standard deviations.
    CHECK(std::abs(static_cast<double>(zeros[n]) - expected) <= 5 * std::sqrt(expected) + 1);
  }
}

}  // namespace
}  // namespace deltawire::kernels::test::digest_test
