// tight_encode and tight_decode of every backend: exact round trips over all dtypes, sizes, kinds
// of change and depths of history; equal bytes from all backends; and refusals.
#include <catch2/catch.hpp>

#include "kernels/cpu/range_coder.h"
#include "kernels/cpu/survival.h"
#include "tests/unit/kernels/kernel_data.h"

namespace deltawire::kernels::test::tight_test {
namespace {

const DigestKey& Key() {
  static const DigestKey key(0x7167);
  return key;
}

struct Kind {
  ClassFunction function;
  unsigned width;
};
constexpr Kind kKinds[] = {
    {ClassFunction::kBF16, 2},   {ClassFunction::kF16, 2},    {ClassFunction::kF32, 4},
    {ClassFunction::kF8E4M3, 1}, {ClassFunction::kF8E5M2, 1}, {ClassFunction::kNone, 1},
    {ClassFunction::kNone, 2},   {ClassFunction::kNone, 4},   {ClassFunction::kNone, 8}};

/// The old bytes and payload of a chunk's last delta, and the payloads before it, newest first.
struct Chain {
  Buffer old_data, payload;
  std::vector<Buffer> past;

  History Last(size_t depth) const {
    views.clear();
    for (size_t i = 0; i < depth; ++i) views.push_back(past[i]);
    return {views, 0xc0ffee};
  }
  mutable std::vector<Bytes> views;
};

/// Fills with numbers of twelve neighbouring exponents, as weights have. Formats without an
/// exponent, and fp8, get random bytes.
void FillLikeWeights(MutableBytes data, const Kind& kind, Random& random) {
  for (size_t i = 0; i < data.size() / kind.width; ++i) {
    uint64_t v = random.Next();
    const auto low = static_cast<unsigned>(random.Below(12));
    switch (kind.function) {
      case ClassFunction::kBF16:
        v = (v & 0x807f) | uint64_t{112 + low} << 7;
        break;
      case ClassFunction::kF16:
        v = (v & 0x83ff) | uint64_t{2 + low} << 10;
        break;
      case ClassFunction::kF32:
        v = (v & 0x807fffff) | uint64_t{112 + low} << 23;
        break;
      default:
        break;
    }
    StoreAt(data, i, kind.width, v);
  }
}

Chain MakeChain(const Kind& kind, size_t elements, double density, Change how, size_t depth,
                uint64_t seed) {
  Random random(seed);
  Buffer a(elements * kind.width);
  FillLikeWeights(a, kind, random);
  std::vector<Buffer> past;
  for (size_t i = 0; i < depth; ++i) {
    Buffer b(Bytes(a), 0);
    if (random.Below(4) != 0) Mutate(b, kind.width, density, how, random);  // one in four is empty
    past.insert(past.begin(), Encode(Best(), Key(), a, b, kind.width));
    a = Buffer(Bytes(b), 0);
  }
  Buffer b(Bytes(a), 0);
  Mutate(b, kind.width, density, how, random);
  Buffer payload = Encode(Best(), Key(), a, b, kind.width);
  return {std::move(a), std::move(payload), std::move(past), {}};
}

Buffer TightOf(const Backend& backend, const Chain& chain, const Kind& kind, size_t depth,
               size_t skew) {
  Buffer scratch(kTightScratchBytes, skew), out(chain.payload.size(), skew);
  size_t bytes = ~size_t{0};
  REQUIRE(backend.tight_encode(chain.old_data, chain.payload, kind.width, kind.function,
                               chain.Last(depth), scratch, out, &bytes) == DecodeStatus::kOk);
  REQUIRE(bytes < chain.payload.size());
  return Buffer(Bytes(out).first(bytes), 0);
}

DecodeStatus Decode(const Backend& backend, const Chain& chain, const Kind& kind, Bytes tight,
                    size_t depth, Buffer* fast) {
  Buffer scratch(kTightScratchBytes, 3), out(MaxEncodedBytes(chain.old_data.size(), kind.width), 1);
  size_t bytes = 0;
  const DecodeStatus s = backend.tight_decode(chain.old_data, tight, kind.width, chain.Last(depth),
                                              scratch, out, &bytes);
  *fast = Buffer(Bytes(out).first(s == DecodeStatus::kOk ? bytes : 0), 0);
  return s;
}

/// True when the chain has a tight form at all: it must be smaller than the fast one.
bool CheckChain(const Kind& kind, size_t elements, double density, Change how, size_t depth,
                uint64_t seed) {
  CAPTURE(static_cast<int>(kind.function), kind.width, elements, density, static_cast<int>(how),
          depth, seed);
  const Chain chain = MakeChain(kind, elements, density, how, depth, seed);
  if (chain.payload.size() == 0) return false;
  const Buffer expected = TightOf(Scalar(), chain, kind, depth, 0);
  for (const Backend* backend : All()) {
    CAPTURE(backend->name);
    const Buffer tight = expected.size() > 0 ? TightOf(*backend, chain, kind, depth, 5) : Buffer(0);
    REQUIRE(Equal(tight, expected));
    TightHead head;
    if (tight.size() == 0) continue;
    REQUIRE(ReadTightHead(tight, &head) == DecodeStatus::kOk);
    CHECK(head.function == kind.function);
    CHECK(head.depth == depth);
    CHECK(head.context == (depth > 0 ? 0xc0ffee : 0));
    Buffer fast(0);
    REQUIRE(Decode(*backend, chain, kind, tight, depth, &fast) == DecodeStatus::kOk);
    REQUIRE(Equal(fast, chain.payload));
  }
  return expected.size() > 0;
}

TEST_CASE("Tight payloads of every dtype and size and density and kind of change come back") {
  uint64_t seed = 20261120;
  size_t coded = 0;
  const size_t block = kBlockElements;
  const size_t sizes[] = {1,  2,    7,         8,     63,        64,
                          65, 1000, block - 1, block, block + 1, 3 * block + 77};
  for (const Kind& kind : kKinds) {
    for (const size_t elements : sizes) {
      // Large chunks are slow in the scalar backend, so they are tried with fewer kinds of change.
      for (const double density : {0.0005, 0.02, 0.4, 1.0}) {
        if (elements > block && density > 0.1) continue;
        for (const Change how : kChanges) {
          if (elements >= block - 1 && how != Change::kSmall && how != Change::kBoundary) continue;
          coded += CheckChain(kind, elements, density, how, 0, ++seed);
        }
      }
    }
  }
  CHECK(coded > 100);  // tight does not pay where a chunk is too small or too random
}

TEST_CASE("Tight payloads with any depth of history come back as they were") {
  uint64_t seed = 7;
  size_t coded = 0;
  for (const Kind& kind : kKinds) {
    for (const size_t depth : {1, 2, 3, 4, 5, 8}) {
      for (const size_t elements : {size_t{200}, kBlockElements + 300}) {
        coded += CheckChain(kind, elements, 0.03, Change::kSmall, depth, ++seed);
        coded += CheckChain(kind, elements, 0.03, Change::kBoundary, depth, ++seed);
      }
    }
  }
  CHECK(coded > 30);
}

/// A chunk whose changes all lie in the first part of each block: one lane has nearly all of them,
/// and more bytes than its share of the room that an encoder gives each lane.
TEST_CASE("Tight payloads of a chunk whose changes are all in one lane come back") {
  const Kind kind{ClassFunction::kBF16, 2};
  Random random(4711);
  Buffer a(2 * (kBlockElements + 100));
  for (size_t i = 0; i < a.size() / 2; ++i) StoreAt(a, i, 2, i < 12000 ? 0x3880 : 0x3e80);
  Buffer b(Bytes(a), 0);
  for (size_t i = 0; i < 12000; i += 1 + random.Below(5)) StoreAt(b, i, 2, 0x3881);
  Chain chain{std::move(a), Buffer(0), {}, {}};
  chain.payload = Encode(Best(), Key(), chain.old_data, b, 2);
  const Buffer expected = TightOf(Scalar(), chain, kind, 0, 0);
  REQUIRE(expected.size() > 0);
  CHECK(std::to_integer<unsigned>(expected.data()[3]) >> 4 == kMaxLaneBits);
  for (const Backend* backend : All()) {
    CAPTURE(backend->name);
    CHECK(Equal(TightOf(*backend, chain, kind, 0, 5), expected));
    Buffer fast(0);
    REQUIRE(Decode(*backend, chain, kind, expected, 0, &fast) == DecodeStatus::kOk);
    CHECK(Equal(fast, chain.payload));
  }
}

TEST_CASE("Tight payloads of chunks that are counted in part come back") {
  uint64_t seed = 99;
  size_t coded = 0;
  for (const size_t depth : {0, 3}) {
    // Many changes in few elements, and in many; more than the scratch keeps of a chunk.
    coded +=
        CheckChain({ClassFunction::kBF16, 2}, kBlockElements, 0.1, Change::kSmall, depth, ++seed);
    coded += CheckChain({ClassFunction::kF32, 4}, 3 * kBlockElements + 5, 0.04, Change::kSmall,
                        depth, ++seed);
    coded += CheckChain({ClassFunction::kBF16, 2}, 5 * kBlockElements, 0.3, Change::kSmall, depth,
                        ++seed);
  }
  CHECK(coded >= 4);  // where changes are at random, tight may be no smaller
}

/// Classes from which one element in two changes down to one in 50,000, and one that never does:
/// sums of weights that rise by leaps and by single units, and skips, also where a lane's part
/// begins.
TEST_CASE("Tight payloads of classes that change often and hardly ever come back") {
  const Kind kind{ClassFunction::kBF16, 2};
  constexpr unsigned kExponents = 12;
  for (const size_t elements : {size_t{9001}, 3 * kBlockElements + 1234}) {
    for (const size_t depth : {0, 2}) {
      Random random(elements + depth);
      Buffer a(elements * 2);
      // Long runs of one exponent, so that a lane passes nothing but large or tiny weights.
      for (size_t i = 0; i < elements;) {
        const size_t stop = std::min(elements, i + 1 + random.Below(1500));
        const uint64_t exponent = random.Below(kExponents);
        for (; i < stop; ++i) StoreAt(a, i, 2, (random.Next() & 0x807f) | (112 + exponent) << 7);
      }
      const auto changed = [&](const Buffer& from) {
        Buffer to(Bytes(from), 0);
        for (size_t i = 0; i < elements; ++i) {
          const uint64_t v = LoadAt(from, i, 2);
          const uint64_t exponent = (v >> 7 & 0xff) - 112;
          if (exponent == 7 || exponent >= kExponents ||
              random.Below(uint64_t{2} << (exponent * 4 / 3)) != 0)
            continue;
          const uint64_t d = 1 + (random.Below(8) == 0 ? random.Below(40) : 0);
          StoreAt(to, i, 2, random.Below(2) == 0 ? v + d : v - d);
        }
        return to;
      };
      Chain chain{Buffer(Bytes(a), 0), Buffer(0), {}, {}};
      for (size_t k = 0; k < depth; ++k) {
        Buffer b = changed(chain.old_data);
        chain.past.insert(chain.past.begin(), Encode(Best(), Key(), chain.old_data, b, 2));
        chain.old_data = std::move(b);
      }
      chain.payload = Encode(Best(), Key(), chain.old_data, changed(chain.old_data), 2);
      const Buffer expected = TightOf(Scalar(), chain, kind, depth, 0);
      REQUIRE(expected.size() > 0);
      for (const Backend* backend : All()) {
        CAPTURE(elements, depth, backend->name);
        CHECK(Equal(TightOf(*backend, chain, kind, depth, 5), expected));
        Buffer fast(0);
        REQUIRE(Decode(*backend, chain, kind, expected, depth, &fast) == DecodeStatus::kOk);
        CHECK(Equal(fast, chain.payload));
      }
    }
  }
}

TEST_CASE("Payloads of another format or of too many lanes are refused") {
  const Kind kind{ClassFunction::kBF16, 2};
  const Chain chain = MakeChain(kind, 20000, 0.03, Change::kSmall, 0, 5);
  const Buffer tight = TightOf(Scalar(), chain, kind, 0, 0);
  REQUIRE(tight.size() > 0);
  for (const Backend* backend : All()) {
    CAPTURE(backend->name);
    Buffer fast(0);
    Buffer old_format(Bytes(tight), 0);
    old_format.data()[0] = std::byte{2};
    CHECK(Decode(*backend, chain, kind, old_format, 0, &fast) == DecodeStatus::kMalformed);
    Buffer lanes(Bytes(tight), 0);
    lanes.data()[3] |= std::byte{3 << 4};
    CHECK(Decode(*backend, chain, kind, lanes, 0, &fast) == DecodeStatus::kMalformed);
  }
  Buffer old_fast(Bytes(chain.payload), 0);
  old_fast.data()[0] = std::byte{2};
  CHECK(Best().validate(old_fast, chain.old_data.size(), 2, nullptr) == DecodeStatus::kMalformed);
}

TEST_CASE("LargestSum is the inverse of Survival") {
  Random random(31);
  for (size_t i = 0; i < 200000; ++i) {
    const uint64_t survivors = 1 + (random.Next() >> 33 >> random.Below(31));
    const uint64_t sum = LargestSum(survivors);
    CAPTURE(survivors);
    REQUIRE(Survival(sum) >= survivors);
    REQUIRE(Survival(sum + 1) < survivors);
  }
  for (uint64_t e = 0; e <= 31; ++e) {
    const uint64_t power = kCertain >> e;
    REQUIRE(Survival(LargestSum(power)) >= power);
    REQUIRE(Survival(LargestSum(power) + 1) < power);
  }
}

}  // namespace
}  // namespace deltawire::kernels::test::tight_test
