#include <catch2/catch.hpp>
#include <random>

#include "bench/delta/bits.h"

namespace deltawire::bench::payload_parts_test {
namespace {

using kernels::ClassFunction;

struct Encoded {
  std::vector<std::byte> payload;
  uint64_t changed = 0;
};

template <typename T>
Bytes View(const std::vector<T>& v) {
  return std::as_bytes(std::span(v));
}

template <typename T>
Encoded EncodeFast(const std::vector<T>& before, const std::vector<T>& after) {
  const kernels::DigestKey key(1);
  Encoded out;
  out.payload.resize(kernels::MaxEncodedBytes(before.size() * sizeof(T), sizeof(T)));
  const auto r =
      kernels::Scalar().diff_encode(key, View(before), View(after), sizeof(T), 0, out.payload);
  out.payload.resize(r.bytes);
  out.changed = r.changed;
  return out;
}

TEST_CASE("payload parts: those of one fast block are as worked out by hand") {
  // Of 100 elements three change: number 10 by +1, 11 by -1 and 99 by +1, so the gaps are 10, 0 and
  // 87. rice(3, 100) is 4, the smallest k with 6000 * 2^k >= 481 * 197. The quotients are 0, 0 and
  // 5; in unary they take 3 ones and 5 zeros.
  std::vector<uint16_t> before(100, 1000), after = before;
  ++after[10];
  --after[11];
  ++after[99];
  const Encoded e = EncodeFast(before, after);
  const auto parts = SplitFast(e.payload, 200, 2);
  REQUIRE(parts.ok());
  CHECK(parts->positions == 3 * 4 + 3 + 5);
  CHECK(parts->differences == 4);  // three signs, and a bit of padding
  CHECK(parts->rest == 20 * 8);    // one row, whose columns have width 0
  CHECK(parts->total() == static_cast<double>(e.payload.size()) * 8);
}

TEST_CASE("payload parts: large differences and raw blocks are differences") {
  const uint64_t seed = 11;
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  std::vector<uint32_t> before(65536 + 50, 7), after = before;
  for (size_t i = 0; i < 65536; i += 64) after[i] += static_cast<uint32_t>(random() % 1000 + 2);
  for (size_t i = 65536; i < after.size(); ++i)
    after[i] = static_cast<uint32_t>(random() | 1 << 30);
  const Encoded e = EncodeFast(before, after);
  const auto parts = SplitFast(e.payload, before.size() * 4, 4);
  REQUIRE(parts.ok());
  // There are 1024 changes, so rice(1024, 65536) is 5, the smallest k with 2000 * 1024 * 2^k >= 481
  // * 130048. The first gap is 0 and all others are 63, which have the quotient 1.
  CHECK(parts->positions == 1024 * (5 + 1) + 1023);
  CHECK(parts->differences > 50 * 32 + 1024 * 8);
  CHECK(parts->total() == static_cast<double>(e.payload.size()) * 8);
}

TEST_CASE("payload parts: what is no fast payload is refused") {
  std::vector<uint16_t> before(1000, 5), after = before;
  for (size_t i = 0; i < after.size(); i += 10) ++after[i];
  Encoded e = EncodeFast(before, after);
  CHECK(SplitFast(Bytes(e.payload).first(10), 2000, 2).status().code() ==
        StatusCode::kUnimplemented);
  CHECK(SplitFast(Bytes(e.payload).first(e.payload.size() - 1), 2000, 2).status().code() ==
        StatusCode::kDataLoss);
  e.payload[0] = std::byte{1};
  CHECK(SplitFast(e.payload, 2000, 2).status().code() == StatusCode::kUnimplemented);
}

TEST_CASE("payload parts: a tight payload takes at most 4 % more than its classes' entropy") {
  const kernels::Backend& kernels = kernels::Scalar();
  if (kernels.tight_encode == nullptr) {
    WARN("SKIPPED: the scalar backend has no tight kernels");
    return;
  }
  const uint64_t seed = 3;
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  // The elements are of two classes of equal size. One element in 16 of the first class changes by
  // one, up or down, and one in 256 of the second.
  std::vector<uint16_t> before(1 << 20), after;
  for (size_t i = 0; i < before.size(); ++i) {
    before[i] = static_cast<uint16_t>((i % 2 == 0 ? 0x3c00 : 0x3c80) + random() % 0x40);
  }
  after = before;
  for (size_t i = 0; i < after.size(); ++i) {
    if (random() % (i % 2 == 0 ? 16 : 256) == 0) after[i] += random() % 2 == 0 ? 1 : -1;
  }
  const Encoded fast = EncodeFast(before, after);
  std::vector<std::byte> scratch(kernels::kTightScratchBytes), out(fast.payload.size());
  size_t bytes = 0;
  REQUIRE(kernels.tight_encode(View(before), fast.payload, 2, ClassFunction::kBF16, {}, scratch,
                               out, &bytes) == kernels::DecodeStatus::kOk);
  REQUIRE(bytes > 0);
  ChangeCounter counter(ClassFunction::kBF16, 2);
  const Tally tally = counter.Add(View(before), View(after), {});
  const auto parts = SplitTight(Bytes(out).first(bytes), tally, false);
  REQUIRE(parts.ok());
  const Bounds bounds = counter.Finish();
  CHECK(parts->positions >= 0.999 * bounds.exponent.positions);
  CHECK(parts->positions <= 1.02 * bounds.exponent.positions);
  // Each difference takes one sign bit, and its length in unary costs next to nothing because it is
  // nearly always the same.
  CHECK(parts->differences >= static_cast<double>(fast.changed));
  CHECK(parts->differences <= 1.1 * static_cast<double>(fast.changed));
  CHECK(parts->total() == Approx(static_cast<double>(bytes) * 8));
  CHECK(parts->total() <= 1.04 * bounds.exponent.total());  // the README's 4 %
}

}  // namespace
}  // namespace deltawire::bench::payload_parts_test
