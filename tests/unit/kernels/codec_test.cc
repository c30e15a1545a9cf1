// diff_encode, decode_apply, validate and digest of every backend, compared with the scalar one.
#include <catch2/catch.hpp>

#include "tests/unit/kernels/kernel_data.h"

namespace deltawire::kernels::test::codec_test {
namespace {

const DigestKey& Key() {
  static const DigestKey key(0x5eed);
  return key;
}

/// Checks everything that a backend must get right for one pair of old and new bytes.
void CheckPair(const Backend& backend, Bytes old_data, Bytes new_data, unsigned width,
               size_t skew) {
  const uint64_t before = Scalar().digest(Key(), old_data);
  const uint64_t after = Scalar().digest(Key(), new_data);
  REQUIRE(backend.digest(Key(), old_data) == before);

  const size_t bound = MaxEncodedBytes(old_data.size(), width);
  Buffer expected(bound), out(bound, skew);
  const EncodeResult e = Scalar().diff_encode(Key(), old_data, new_data, width, before, expected);
  const EncodeResult r = backend.diff_encode(Key(), old_data, new_data, width, before, out);
  REQUIRE(r.changed == CountChanged(old_data, new_data, width));
  REQUIRE(r.digest_after == after);
  REQUIRE(r.bytes == e.bytes);
  REQUIRE(r.bytes <= bound);
  REQUIRE(Equal(Bytes(out).first(r.bytes), Bytes(expected).first(e.bytes)));
  REQUIRE((r.bytes == 0) == (r.changed == 0));
  Buffer again(bound, skew);
  const EncodeResult c = backend.diff_encode_checked(Key(), old_data, new_data, width, again);
  REQUIRE(c.digest_before == before);
  REQUIRE(c.digest_after == after);
  REQUIRE(c.changed == r.changed);
  REQUIRE(Equal(Bytes(again).first(c.bytes), Bytes(out).first(r.bytes)));
  if (r.bytes == 0) return;

  const Buffer payload(Bytes(out).first(r.bytes), 0);
  uint64_t changed = 0;
  REQUIRE(backend.validate(payload, old_data.size(), width, &changed) == DecodeStatus::kOk);
  REQUIRE(changed == r.changed);
  Buffer data(old_data, skew);
  uint64_t digest = 0;
  REQUIRE(backend.decode_apply(Key(), payload, data, width, before, &digest) == DecodeStatus::kOk);
  REQUIRE(Equal(data, new_data));
  REQUIRE(digest == after);
}

TEST_CASE("Deltas of every width and size and density and kind of change come back") {
  const uint64_t seed = 20240601;
  CAPTURE(seed);
  Random random(seed);
  const size_t block = kBlockElements;
  const size_t sizes[] = {0,
                          1,
                          2,
                          3,
                          7,
                          8,
                          31,
                          63,
                          64,
                          65,
                          255,
                          257,
                          511,
                          513,
                          1000,
                          block - 1,
                          block,
                          block + 1,
                          2 * block - 1,
                          2 * block + 777};
  for (const Backend* backend : All()) {
    for (const unsigned width : kWidths) {
      for (const size_t elements : sizes) {
        const size_t skew = random.Below(8);
        Buffer old_data(elements * width, skew), new_data(elements * width, random.Below(8));
        old_data.Fill(random);
        for (const double density : {0.0, 0.001, 0.01, 0.5, 1.0}) {
          const Change how = kChanges[random.Below(std::size(kChanges))];
          std::memcpy(new_data.data(), old_data.data(), old_data.size());
          Mutate(new_data, width, density, how, random);
          CAPTURE(backend->name, width, elements, skew, density, static_cast<int>(how));
          CheckPair(*backend, old_data, new_data, width, skew);
        }
      }
    }
  }
}

TEST_CASE("A single change around any border of vectors and words and blocks comes back") {
  const uint64_t seed = 7;
  CAPTURE(seed);
  Random random(seed);
  for (const Backend* backend : All()) {
    for (const unsigned width : kWidths) {
      const size_t elements = kBlockElements + 300;
      Buffer old_data(elements * width, width % 2), new_data(elements * width, 3);
      old_data.Fill(random);
      for (const size_t at :
           {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{253}, size_t{254}, size_t{255},
            size_t{256}, size_t{509}, size_t{510}, size_t{511}, size_t{32767}, size_t{32768},
            kBlockElements - 1, kBlockElements, kBlockElements + 255, elements - 1}) {
        for (const Change how : kChanges) {
          std::memcpy(new_data.data(), old_data.data(), old_data.size());
          StoreAt(new_data, at, width, Changed(LoadAt(old_data, at, width), how, width, random));
          CAPTURE(backend->name, width, at, static_cast<int>(how));
          CheckPair(*backend, old_data, new_data, width, 5);
        }
      }
    }
  }
}

TEST_CASE("Where every element changes by one each takes two bits") {
  const uint64_t seed = 11;
  CAPTURE(seed);
  for (const Backend* backend : All()) {
    for (const unsigned width : kWidths) {
      Random random(seed);
      const size_t elements = 2 * kBlockElements;
      Buffer old_data(elements * width), new_data(elements * width);
      old_data.Fill(random);
      std::memcpy(new_data.data(), old_data.data(), old_data.size());
      Mutate(new_data, width, 1.0, Change::kSmall, random);
      CAPTURE(backend->name, width);
      const Buffer payload = Encode(*backend, Key(), old_data, new_data, width);
      // Each change takes one bit for its gap, which is empty, and one for its sign. Both blocks
      // are alike, so the table has no rows.
      CHECK(payload.size() == 20 + elements * 2 / 8);
      CheckPair(*backend, old_data, new_data, width, 0);
    }
  }
}

TEST_CASE("Bursts of changes come back although their gaps are far from the average") {
  const uint64_t seed = 14;
  CAPTURE(seed);
  for (const Backend* backend : All()) {
    for (const unsigned width : kWidths) {
      for (const size_t burst : {1, 3, 7, 8, 60, 500}) {
        for (const size_t pause : {57, 400, 5000, 30000}) {
          CAPTURE(backend->name, width, burst, pause);
          Random random(seed);
          const size_t elements = kBlockElements + 5000;
          Buffer old_data(elements * width), new_data(elements * width);
          old_data.Fill(random);
          std::memcpy(new_data.data(), old_data.data(), old_data.size());
          for (size_t i = 0; i < elements; i += pause + random.Below(pause)) {
            for (size_t end = std::min(elements, i + burst); i < end; ++i) {
              const uint64_t old = LoadAt(old_data, i, width);
              const Change how = random.Below(8) == 0 ? Change::kBoundary : Change::kSmall;
              StoreAt(new_data, i, width, Changed(old, how, width, random));
            }
          }
          CheckPair(*backend, old_data, new_data, width, 1);
        }
      }
    }
  }
}

TEST_CASE("The largest chunk comes back as it was and a larger one is refused") {
  const uint64_t seed = 12;
  CAPTURE(seed);
  for (const unsigned width : kWidths) {
    Random random(seed);
    Buffer old_data(kMaxChunkBytes, 1), new_data(kMaxChunkBytes, 2);
    old_data.Fill(random);
    std::memcpy(new_data.data(), old_data.data(), old_data.size());
    Mutate(new_data, width, 0.01, Change::kBoundary, random);
    CAPTURE(width);
    CheckPair(Best(), old_data, new_data, width, 4);
    Buffer one_more(kMaxChunkBytes + 8);
    const Buffer payload = Encode(Best(), Key(), old_data, new_data, width);
    CHECK(Best().validate(payload, one_more.size(), width, nullptr) == DecodeStatus::kTooLarge);
  }
}

TEST_CASE("A delta that is applied to a wrong base gives a digest that shows it") {
  const uint64_t seed = 13;
  CAPTURE(seed);
  Random random(seed);
  for (const Backend* backend : All()) {
    Buffer old_data(40000), new_data(40000);
    old_data.Fill(random);
    std::memcpy(new_data.data(), old_data.data(), old_data.size());
    Mutate(new_data, 2, 0.01, Change::kSmall, random);
    const Buffer payload = Encode(*backend, Key(), old_data, new_data, 2);
    // The base is wrong in one bit, as after a lost update. Where the sum wraps for that reason, a
    // word changes by another amount than it should, and the digest must follow all the same.
    Buffer wrong(old_data, 0);
    StoreAt(wrong, 77, 2, LoadAt(wrong, 77, 2) ^ 1);
    uint64_t digest = 0;
    REQUIRE(backend->decode_apply(Key(), payload, wrong, 2, backend->digest(Key(), wrong),
                                  &digest) == DecodeStatus::kOk);
    CHECK(digest == backend->digest(Key(), wrong));
    CHECK(digest != backend->digest(Key(), new_data));
  }
}

}  // namespace
}  // namespace deltawire::kernels::test::codec_test
