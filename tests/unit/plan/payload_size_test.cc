// Expected sizes against what the benchmark measured, and against the real encoder.
#include "common/plan/payload_size.h"

#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "common/base/bytes.h"
#include "kernels/kernels.h"

namespace deltawire::plan::payload_size_test {
namespace {

constexpr size_t kChunk = size_t{2} << 20;

double BitsPerChange(double density, ChangeKind kind) {
  const double bytes = FastBytes(kChunk, 2, density, ShapeOf(kind).difference_bits);
  return 8 * bytes / (density * kChunk / 2);
}

TEST_CASE("payload size: the formula gives what docs/benchmarks.md measured") {
  CHECK(BitsPerChange(0.013, ChangeKind::kFp32) == Approx(9.56).epsilon(0.02));
  CHECK(BitsPerChange(0.023, ChangeKind::kFp32) == Approx(8.78).epsilon(0.02));
  CHECK(BitsPerChange(0.0105, ChangeKind::kGrid) == Approx(10.0).epsilon(0.02));
  CHECK(BitsPerChange(0.0039, ChangeKind::kBf16) == Approx(12.69).epsilon(0.02));
  CHECK(BitsPerChange(0.01, ChangeKind::kRandom) == Approx(10.4).epsilon(0.03));
  CHECK(BitsPerChange(0.08, ChangeKind::kRandom) == Approx(7.3).epsilon(0.03));
}

TEST_CASE("payload size: the real encoder agrees where changes lie at random") {
  const kernels::Backend& backend = kernels::Best();
  const kernels::DigestKey key(1);
  for (const double density : {0.0005, 0.004, 0.02, 0.1}) {
    CAPTURE(density);
    std::mt19937_64 random(7);
    std::bernoulli_distribution changes(density);
    std::vector<std::byte> before(kChunk), out(kernels::MaxEncodedBytes(kChunk, 2));
    std::vector<std::byte> after = before;
    uint64_t changed = 0;
    for (size_t i = 0; i < kChunk; i += 2) {
      if (!changes(random)) continue;
      StoreLe<uint16_t>(&after[i], random() % 2 == 0 ? 1 : 0xffff);
      ++changed;
    }
    const auto made = backend.diff_encode(key, before, after, 2, backend.digest(key, before), out);
    REQUIRE(made.changed == changed);
    const double density_is = static_cast<double>(changed) / (kChunk / 2.0);
    // A change of one has a sign and no size.
    CHECK(FastBytes(kChunk, 2, density_is, 1) ==
          Approx(static_cast<double>(made.bytes)).epsilon(0.02));
  }
}

TEST_CASE("payload size: more changes are never smaller, and never above the raw bytes by much") {
  for (const size_t chunk : {size_t{512}, size_t{4096}, kChunk}) {
    double before = 0;
    for (double density = 1e-5; density <= 1; density *= 1.3) {
      const double bytes = FastBytes(chunk, 2, density, 2);
      CHECK(bytes >= before * 0.999);
      CHECK(bytes <= static_cast<double>(chunk) + 20 + 5 * 16);
      before = bytes;
    }
  }
  CHECK(FastBytes(kChunk, 2, 0, 2) == 0);
}

TEST_CASE("payload size: all large chunks have a change, and of small ones only a part has") {
  CHECK(ChunkChanges(1 << 20, 0.01) == Approx(1));
  CHECK(ChunkChanges(100, 0.01) == Approx(0.634).epsilon(0.001));
  CHECK(ChunkChanges(100, 1) == 1);
}

}  // namespace
}  // namespace deltawire::plan::payload_size_test
