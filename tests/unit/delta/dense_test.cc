// The codec dense: it gives back the same fast payload, is small where everything changes, and
// refuses what the format forbids.
#include "common/delta/dense.h"

#include <zstd.h>

#include <catch2/catch.hpp>

#include "tests/unit/kernels/kernel_data.h"

namespace deltawire::dense_test {
namespace {

using namespace kernels::test;
using kernels::Best;
using kernels::Bytes;
using kernels::DecodeStatus;

struct Case {
  Buffer before, after, fast;
};

Case Make(Random& random, unsigned width, size_t elements, double density, Change how) {
  Buffer before(elements * width);
  before.Fill(random);
  Buffer after(Bytes(before), 0);
  Mutate(after, width, density, how, random);
  StoreAt(after, 0, width, LoadAt(before, 0, width) + 1);  // so that at least one element changes
  Buffer fast = Encode(Best(), kernels::DigestKey(1), before, after, width);
  return {std::move(before), std::move(after), std::move(fast)};
}

std::vector<std::byte> Dense(const Buffer& fast, size_t raw, unsigned width, size_t limit) {
  std::vector<std::byte> out;
  out.resize(DenseEncode(Best(), fast, raw, width, limit, out));
  return out;
}

DecodeStatus Decode(Bytes dense, size_t raw, unsigned width, std::vector<std::byte>& out) {
  out.assign(kernels::MaxEncodedBytes(raw, width), std::byte{0});
  size_t bytes = 0;
  const DecodeStatus s = DenseDecode(Best(), Buffer(dense, 0), raw, width, out, &bytes);
  out.resize(bytes);
  return s;
}

/// A dense payload that decompresses to `planes`.
std::vector<std::byte> Wrap(const std::vector<std::byte>& planes, unsigned width) {
  std::vector<std::byte> out(4 + ZSTD_compressBound(planes.size()));
  out[0] = std::byte{2};
  out[1] = std::byte{3};
  out[2] = static_cast<std::byte>(width);
  const size_t n = ZSTD_compress(out.data() + 4, out.size() - 4, planes.data(), planes.size(), 1);
  REQUIRE(!ZSTD_isError(n));
  out.resize(4 + n);
  return out;
}

}  // namespace

TEST_CASE("dense payloads turn back into the same fast payload") {
  const uint64_t seed = 0xDE05E;
  CAPTURE(seed);
  Random random(seed);
  for (const unsigned width : kWidths) {
    for (const Change how : kChanges) {
      for (const size_t elements : {size_t{1}, size_t{7}, size_t{65536}, size_t{100'001}}) {
        for (const double density : {0.01, 0.7, 1.0}) {
          CAPTURE(width, static_cast<int>(how), elements, density);
          const size_t raw = elements * width;
          const Case c = Make(random, width, elements, density, how);
          const auto dense = Dense(c.fast, raw, width, raw + 1000);
          REQUIRE(!dense.empty());
          std::vector<std::byte> back;
          REQUIRE(Decode(dense, raw, width, back) == DecodeStatus::kOk);
          CHECK(Equal(back, c.fast));
        }
      }
    }
  }
}

TEST_CASE("planes are codes of differences, lowest byte first") {
  // The differences 1, -1, 0x1234 and 0 of 16 bits have the codes 2, 1, 0x2468 and 0.
  Buffer before(8), after(8);
  const uint16_t d[] = {1, 0xffff, 0x1234, 0};
  for (size_t i = 0; i < 4; ++i) StoreAt(after, i, 2, d[i]);
  const Buffer fast = Encode(Best(), kernels::DigestKey(1), before, after, 2);
  const auto dense = Dense(fast, 8, 2, 1000);
  std::vector<std::byte> planes(8);
  REQUIRE(ZSTD_decompress(planes.data(), 8, dense.data() + 4, dense.size() - 4) == 8);
  const uint8_t want[] = {2, 1, 0x68, 0, 0, 0, 0x24, 0};
  CHECK(std::memcmp(planes.data(), want, 8) == 0);
}

TEST_CASE("dense is made only when it is smaller than its limit") {
  const uint64_t seed = 0xDE05F;
  CAPTURE(seed);
  Random random(seed);
  const size_t raw = 200'000;
  const Case c = Make(random, 2, raw / 2, 0.9, Change::kSmall);
  const auto dense = Dense(c.fast, raw, 2, raw);
  REQUIRE(!dense.empty());
  CHECK(dense.size() < raw / 2);
  CHECK((Dense(c.fast, raw, 2, dense.size() + 1) == dense));
  CHECK(Dense(c.fast, raw, 2, dense.size()).empty());
  for (const size_t limit : {0, 1, 4, 5}) CHECK(Dense(c.fast, raw, 2, limit).empty());
  // Random bytes cannot be compressed.
  const Case noise = Make(random, 2, raw / 2, 1.0, Change::kAny);
  CHECK(Dense(noise.fast, raw, 2, raw).empty());
}

TEST_CASE("dense decoders refuse what the format does not allow") {
  const uint64_t seed = 0xDE060;
  CAPTURE(seed);
  Random random(seed);
  const size_t raw = 4000;
  const Case c = Make(random, 2, raw / 2, 0.5, Change::kSmall);
  const auto good = Dense(c.fast, raw, 2, raw);
  REQUIRE(!good.empty());
  std::vector<std::byte> back;
  REQUIRE(Decode(good, raw, 2, back) == DecodeStatus::kOk);

  for (size_t n = 0; n < good.size(); ++n) {
    CAPTURE(n);
    CHECK(Decode(Bytes(good).first(n), raw, 2, back) != DecodeStatus::kOk);
  }
  CHECK(Decode(Bytes(good).first(3), raw, 2, back) == DecodeStatus::kTruncated);
  CHECK(Decode(Bytes(good).first(good.size() - 1), raw, 2, back) == DecodeStatus::kTruncated);
  auto bad = good;
  bad.push_back(std::byte{0});
  CHECK(Decode(bad, raw, 2, back) == DecodeStatus::kMalformed);
  for (size_t at = 0; at < 4; ++at) {  // the bytes of format, codec, width and reserved
    CAPTURE(at);
    bad = good;
    bad[at] ^= std::byte{1};
    CHECK(Decode(bad, raw, 2, back) == DecodeStatus::kMalformed);
  }
  CHECK(Decode(good, raw, 4, back) == DecodeStatus::kMalformed);
  CHECK(Decode(good, raw + 2, 2, back) == DecodeStatus::kMalformed);
  CHECK(Decode(good, raw - 2, 2, back) == DecodeStatus::kMalformed);
  CHECK(Decode(good, kernels::kMaxChunkBytes + 2, 2, back) == DecodeStatus::kTooLarge);
  CHECK(Decode(Wrap(std::vector<std::byte>(raw), 2), raw, 2, back) == DecodeStatus::kMalformed);
  // A payload has exactly one zstd frame: a second one is refused, and so is a frame to be skipped.
  bad = good;
  bad.insert(bad.end(), good.begin() + 4, good.end());
  CHECK(Decode(bad, raw, 2, back) == DecodeStatus::kMalformed);
  bad.assign(good.begin(), good.begin() + 4);
  for (const uint8_t b : {0x50, 0x2a, 0x4d, 0x18, 1, 0, 0, 0, 7}) bad.push_back(std::byte{b});
  CHECK(Decode(bad, raw, 2, back) == DecodeStatus::kMalformed);
}

TEST_CASE("damaged dense payloads never decode beyond their chunk") {
  const uint64_t seed = 0xDE061;
  CAPTURE(seed);
  Random random(seed);
  const size_t raw = 3000;
  const Case c = Make(random, 4, raw / 4, 0.8, Change::kBoundary);
  const auto good = Dense(c.fast, raw, 4, raw);
  REQUIRE(!good.empty());
  size_t refused = 0;
  for (int i = 0; i < 3000; ++i) {
    auto bad = good;
    for (uint64_t n = 1 + random.Below(4); n > 0; --n) {
      bad[random.Below(bad.size())] = static_cast<std::byte>(random.Next());
    }
    std::vector<std::byte> back;
    if (Decode(bad, raw, 4, back) != DecodeStatus::kOk) {
      ++refused;
      continue;
    }
    CHECK(Best().validate(back, raw, 4, nullptr) == DecodeStatus::kOk);
  }
  CHECK(refused > 100);
}

}  // namespace deltawire::dense_test
