#include "common/delta/delta.h"

#include <catch2/catch.hpp>
#include <random>
#include <thread>

#include "common/base/checksum.h"

namespace deltawire::delta_test {
namespace {

std::vector<std::byte> Pattern(uint32_t chunk, size_t n) {
  std::mt19937_64 random(chunk);
  std::vector<std::byte> out(n);
  for (std::byte& b : out) b = static_cast<std::byte>(random());
  return out;
}

ChunkDelta Entry(uint32_t chunk) {
  ChunkDelta d;
  d.chunk = chunk;
  d.digest_before = chunk;
  d.digest_after = chunk + 1;
  return d;
}

}  // namespace

TEST_CASE("many threads build one delta: sorted, checksummed, found by chunk") {
  DeltaBuilder builder(uint64_t{1} << 30);
  constexpr uint32_t kChunks = 400;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      // Only odd chunks change, so that the even ones can be checked to be unchanged.
      for (uint32_t c = 2 * t + 1; c < kChunks; c += 8)
        builder.Add(Entry(c), Pattern(c, 100 + c * 37));
    });
  }
  for (auto& t : threads) t.join();
  const auto delta = builder.Finish({1, 1}, {1, 2});
  CHECK(delta->from() == StateId{1, 1});
  CHECK(delta->to() == StateId{1, 2});
  REQUIRE(delta->chunks().size() == kChunks / 2);
  uint64_t bytes = 0;
  for (uint32_t c = 0; c < kChunks; ++c) {
    const ChunkDelta* d = delta->Find(c);
    REQUIRE((d != nullptr) == (c % 2 == 1));
    if (d == nullptr) continue;
    const auto want = Pattern(c, 100 + c * 37);
    CHECK(std::equal(want.begin(), want.end(), d->payload.begin(), d->payload.end()));
    CHECK(d->payload_xxh3 == Xxh3(want));
    CHECK(!d->full);
    bytes += want.size();
  }
  CHECK(delta->payload_bytes() == bytes);
  CHECK(delta->memory_bytes() >= bytes);
  CHECK(delta->Find(kChunks + 7) == nullptr);
}

TEST_CASE("payloads beyond the limit become whole chunks, and stay counted") {
  DeltaBuilder builder(1000);
  builder.Add(Entry(3), Pattern(3, 600));
  builder.Add(Entry(1), Pattern(1, 600));  // 1200 bytes are beyond the limit
  builder.Add(Entry(2), Pattern(2, 400));  // 1000 bytes fit exactly
  builder.Add(Entry(9), {});
  const auto delta = builder.Finish({1, 1}, {1, 2});
  REQUIRE(delta->chunks().size() == 4);
  CHECK(delta->Find(1)->full);
  CHECK(!delta->Find(2)->full);
  CHECK(!delta->Find(3)->full);
  CHECK(delta->Find(9)->full);
  CHECK(delta->payload_bytes() == 1000);
}

}  // namespace deltawire::delta_test
