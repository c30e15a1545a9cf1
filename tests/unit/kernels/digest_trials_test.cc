// The digest against a million random errors, and against the bounds that docs/delta_format.md
// ("What it catches") states for it.
#include <algorithm>
#include <array>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/unit/kernels/kernel_data.h"

namespace deltawire::kernels::test::digest_trials_test {
namespace {

constexpr size_t kWord = 4;

/// How much the digest grows when the words from `at` on (a multiple of 4) change from `was` to
/// `is`.
uint64_t Increment(const DigestKey& key, size_t at, Bytes was, Bytes is) {
  uint64_t sum = 0;
  for (size_t i = 0; i < was.size(); i += kWord) {
    uint32_t o = 0, n = 0;
    std::memcpy(&o, was.data() + i, std::min(kWord, was.size() - i));
    std::memcpy(&n, is.data() + i, std::min(kWord, is.size() - i));
    const size_t p = at + i;
    sum += key.multiplier(p / DigestKey::kBlockBytes) *
           key.words()[p / kWord % DigestKey::kWordsPerBlock] * (uint64_t{n} - uint64_t{o});
  }
  return sum;
}

/// Part of a chunk as an error has left it. `at` is a multiple of 4; the part ends where a word or
/// the chunk ends.
struct Damage {
  static constexpr size_t kMaxBytes = 8192;
  size_t at = 0, bytes = 0;
  std::array<std::byte, kMaxBytes + 2 * kWord> is;

  void Cover(Bytes data, size_t begin, size_t end) {
    at = begin / kWord * kWord;
    bytes = std::min(data.size(), (end + kWord - 1) / kWord * kWord) - at;
    std::memcpy(is.data(), data.data() + at, bytes);
  }
  Bytes Is() const { return Bytes(is).first(bytes); }
  Bytes Was(Bytes data) const { return data.subspan(at, bytes); }
};

enum class Fault { kBit, kSwap, kShiftByte, kShiftElement, kStale, kZeroed };
constexpr Fault kFaults[] = {Fault::kBit,          Fault::kSwap,  Fault::kShiftByte,
                             Fault::kShiftElement, Fault::kStale, Fault::kZeroed};

/// Mostly short ranges, and some long ones.
size_t RangeBytes(Random& random) {
  const size_t most = size_t{64} << random.Below(8);
  return most / 2 + random.Below(most / 2);
}

/// Makes one error of kind `fault` in a copy of part of `data`; `stale` is the version before it.
void Break(Fault fault, Bytes data, Bytes stale, Random& random, Damage* d) {
  const size_t range = RangeBytes(random);
  const size_t begin = random.Below(data.size() - range);
  const unsigned width = 1u << random.Below(4);
  switch (fault) {
    case Fault::kBit: {
      d->Cover(data, begin, begin + 1);
      d->is[begin - d->at] ^= static_cast<std::byte>(1u << random.Below(8));
      return;
    }
    case Fault::kSwap: {  // two elements, at most `range` apart
      const size_t i = begin / width * width;
      const size_t j = std::min(data.size() - width, begin + range) / width * width;
      d->Cover(data, i, j + width);
      std::byte* bytes = d->is.data() - d->at;
      std::swap_ranges(bytes + i, bytes + i + width, bytes + j);
      return;
    }
    case Fault::kShiftByte:
    case Fault::kShiftElement: {
      const size_t by = fault == Fault::kShiftByte ? 1 : width;
      d->Cover(data, begin, begin + range);
      std::byte* from = d->is.data() + (begin - d->at);
      if (random.Below(2) != 0) {
        std::memmove(from + by, from, range - by);
      } else {
        std::memmove(from, from + by, range - by);
      }
      return;
    }
    case Fault::kStale:
      d->Cover(data, begin, begin + range);
      std::memcpy(d->is.data() + (begin - d->at), stale.data() + begin, range);
      return;
    case Fault::kZeroed:
      d->Cover(data, begin, begin + range);
      std::memset(d->is.data() + (begin - d->at), 0, range);
      return;
  }
}

TEST_CASE("A million random bit swap shift stale and zero errors are all caught") {
  constexpr size_t kTrials = 1'000'000, kCheckEvery = 2000, kKeys = 8;
  size_t caught = 0, checked = 0, of_fault[std::size(kFaults)] = {};
  for (uint64_t seed = 0; seed < kKeys; ++seed) {
    Random random(4100 + seed);
    const DigestKey key(seed);
    // `data` is bf16 weights: 64 digest blocks and a tail that ends with half a word. `stale` is
    // another version, which differs in 3 % of the elements.
    Buffer data(64 * DigestKey::kBlockBytes + 4000 + 2);
    for (size_t i = 0; i < data.size() / 2; ++i) {
      StoreAt(data, i, 2, random.Below(2) << 15 | (0x3d00 + random.Below(0x180)));
    }
    Buffer stale(data, 0);
    Mutate(stale, 2, 0.03, Change::kSmall, random);
    const uint64_t good = Scalar().digest(key, data);
    auto damage = std::make_unique<Damage>();
    for (size_t trial = 0; trial < kTrials / kKeys;) {
      const size_t kind = random.Below(std::size(kFaults));
      Break(kFaults[kind], data, stale, random, damage.get());
      if (Equal(damage->Was(data), damage->Is())) continue;  // no error: it left the same bytes
      ++trial;
      ++of_fault[kind];
      const uint64_t increment = Increment(key, damage->at, damage->Was(data), damage->Is());
      caught += increment != 0;
      if (increment == 0 || trial % kCheckEvery == 0) {
        CAPTURE(seed, trial, kind, damage->at, damage->bytes);
        Buffer bad(data, trial % 8);
        std::memcpy(bad.data() + damage->at, damage->is.data(), damage->bytes);
        for (const Backend* backend : All()) {
          CAPTURE(backend->name);
          REQUIRE(backend->digest(key, bad) == good + increment);
        }
        REQUIRE(increment != 0);
        ++checked;
      }
    }
  }
  CHECK(caught == kTrials);
  CHECK(checked >= kTrials / kCheckEvery - kKeys);
  for (const size_t n : of_fault) CHECK(n > kTrials / 10);
}

/// True if chance would give about this count of events of probability p in so many trials.
bool Plausible(size_t count, size_t trials, double p) {
  const double expected = p * static_cast<double>(trials);
  return std::abs(static_cast<double>(count) - expected) <= 5 * std::sqrt(expected) + 1;
}

// A digest of 64 bits does not collide within a test's time. Cut to its lowest B bits it collides,
// by the same argument, with probability 2^-(B-t) instead of 2^-(64-t). The tests expect that many
// collisions, and no more.
constexpr unsigned kCutBits = 16;
constexpr uint64_t kCutMask = (uint64_t{1} << kCutBits) - 1;

TEST_CASE("Errors within a block collide in a digest cut short as often as the bound says") {
  constexpr size_t kTrials = 1'000'000, kMost = 8;
  const uint64_t seed = 77;
  CAPTURE(seed);
  Random random(seed);
  std::vector<std::unique_ptr<DigestKey>> keys;
  for (uint64_t s = 0; s < 512; ++s) keys.push_back(std::make_unique<DigestKey>(seed + s));
  for (const unsigned t : {0u, 3u, 8u, 12u}) {
    size_t collisions = 0;
    for (size_t trial = 0; trial < kTrials; ++trial) {
      const DigestKey& key = *keys[random.Below(keys.size())];
      // One to eight neighbouring words differ. 2^t divides all of the differences, and
      // 2^(t+1) does not divide at least one of them.
      const size_t words = 1 + random.Below(kMost);
      const size_t first = random.Below(DigestKey::kWordsPerBlock - words);
      const size_t odd = random.Below(words);
      uint64_t sum = 0;
      for (size_t i = 0; i < words; ++i) {
        const uint64_t difference = (random.Next() >> (33 + t) | (i == odd ? 1 : 0)) << t;
        sum += key.words()[first + i] * (random.Below(2) != 0 ? difference : 0 - difference);
      }
      collisions += (sum * key.multiplier(random.Below(DigestKey::kMaxBlocks)) & kCutMask) == 0;
    }
    CAPTURE(t, collisions);
    CHECK(Plausible(collisions, kTrials, std::exp2(-static_cast<double>(kCutBits - t))));
  }
}

TEST_CASE("The worst error across two blocks stays under the bound in a digest cut short") {
  // A difference of 2^t * odd stands in one block, and its negative at the same place of another
  // block, so the digest changes by key * (m1 - m2) * 2^t * odd. N = B - t bits of key * (m1 - m2)
  // must be zero. m1 - m2 is even; with probability 2^-s exactly its lowest s >= 1 bits are zero,
  // and the key must supply the others. Together that is (N + 1) 2^-N, half of the bound.
  constexpr size_t kTrials = 1'000'000;
  const uint64_t seed = 78;
  CAPTURE(seed);
  Random random(seed);
  for (const unsigned t : {0u, 3u, 8u, 12u}) {
    size_t collisions = 0;
    for (size_t trial = 0; trial < kTrials; ++trial) {
      const uint64_t key = random.Next(), m1 = random.Next() | 1, m2 = random.Next() | 1;
      const uint64_t difference = (random.Next() >> (33 + t) | 1) << t;
      collisions += (key * (m1 - m2) * difference & kCutMask) == 0;
    }
    const double n = kCutBits - t;
    const double bound = (n + 1) * std::exp2(-(n - 1));
    CAPTURE(t, collisions, bound);
    CHECK(Plausible(collisions, kTrials, bound / 2));
    CHECK(static_cast<double>(collisions) <= bound * static_cast<double>(kTrials));
  }
}

}  // namespace
}  // namespace deltawire::kernels::test::digest_trials_test
