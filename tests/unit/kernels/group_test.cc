// Deltas form a group: fold adds, negate undoes, and both give the canonical bytes.
#include <catch2/catch.hpp>

#include "tests/unit/kernels/kernel_data.h"

namespace deltawire::kernels::test::group_test {
namespace {

const DigestKey& Key() {
  static const DigestKey key(99);
  return key;
}

/// Folds with poisoned scratch and output, so that nothing may rely on their contents.
Buffer Fold(const Backend& backend, std::span<const Bytes> payloads, size_t raw_bytes,
            unsigned width) {
  Buffer scratch(FoldScratchBytes(width), 1), out(MaxEncodedBytes(raw_bytes, width), 3);
  std::memset(scratch.data(), 0xa5, scratch.size());
  std::memset(out.data(), 0x5a, out.size());
  size_t bytes = ~size_t{0};
  REQUIRE(backend.fold(payloads, raw_bytes, width, scratch, out, &bytes) == DecodeStatus::kOk);
  return Buffer(Bytes(out).first(bytes), 0);
}

Buffer Negate(const Backend& backend, Bytes payload, size_t raw_bytes, unsigned width) {
  Buffer scratch(FoldScratchBytes(width), 1), out(MaxEncodedBytes(raw_bytes, width), 5);
  size_t bytes = ~size_t{0};
  REQUIRE(backend.negate(payload, raw_bytes, width, scratch, out, &bytes) == DecodeStatus::kOk);
  return Buffer(Bytes(out).first(bytes), 0);
}

void CheckChain(const Backend& backend, unsigned width, size_t elements, double density, Change how,
                uint64_t seed) {
  CAPTURE(backend.name, width, elements, density, static_cast<int>(how), seed);
  Random random(seed);
  std::vector<Buffer> versions, payloads;
  versions.emplace_back(elements * width);
  versions[0].Fill(random);
  const size_t raw = versions[0].size();
  for (size_t k = 1; k <= 5; ++k) {
    versions.emplace_back(versions[k - 1], 0);
    // The first half of version 3 is that of version 1, so that differences cancel.
    if (k == 3) std::memcpy(versions[3].data(), versions[1].data(), raw / 2);
    Mutate(versions[k], width, k == 4 ? density / 50 : density, how, random);
  }
  std::vector<Bytes> spans;
  for (size_t k = 1; k <= 5; ++k) {
    payloads.push_back(Encode(Scalar(), Key(), versions[k - 1], versions[k], width));
  }
  for (size_t k = 1; k <= 5; ++k) {
    if (payloads[k - 1].size() > 0) spans.push_back(payloads[k - 1]);
    const Buffer direct = Encode(Scalar(), Key(), versions[0], versions[k], width);
    const Buffer folded = Fold(backend, spans, raw, width);
    REQUIRE(Equal(folded, direct));
    if (direct.size() == 0) continue;
    const Buffer back = Negate(backend, folded, raw, width);
    REQUIRE(Equal(back, Encode(Scalar(), Key(), versions[k], versions[0], width)));
    Buffer data(versions[0], 1);
    uint64_t digest = 0;
    REQUIRE(backend.decode_apply(Key(), folded, data, width, Scalar().digest(Key(), data),
                                 &digest) == DecodeStatus::kOk);
    REQUIRE(Equal(data, versions[k]));
    REQUIRE(backend.decode_apply(Key(), back, data, width, digest, &digest) == DecodeStatus::kOk);
    REQUIRE(Equal(data, versions[0]));
    const Bytes both[] = {folded, back};
    REQUIRE(Fold(backend, both, raw, width).size() == 0);
  }
}

TEST_CASE("Folding k deltas is the delta of the ends byte for byte and negation undoes it") {
  uint64_t seed = 4000;
  for (const Backend* backend : All()) {
    for (const unsigned width : kWidths) {
      for (const size_t elements : {size_t{1}, size_t{100}, kBlockElements + 100}) {
        for (const double density : {0.01, 0.4, 1.0}) {
          for (const Change how : {Change::kSmall, Change::kBoundary}) {
            CheckChain(*backend, width, elements, density, how, ++seed);
          }
        }
      }
    }
  }
}

TEST_CASE("The order of addends does not matter and none is no change") {
  const uint64_t seed = 17;
  CAPTURE(seed);
  for (const Backend* backend : All()) {
    Random random(seed);
    Buffer a(2 * 70000), b(2 * 70000), c(2 * 70000);
    a.Fill(random);
    std::memcpy(b.data(), a.data(), a.size());
    Mutate(b, 2, 0.02, Change::kSmall, random);
    std::memcpy(c.data(), b.data(), b.size());
    Mutate(c, 2, 0.02, Change::kAny, random);
    const Buffer ab = Encode(Scalar(), Key(), a, b, 2), bc = Encode(Scalar(), Key(), b, c, 2);
    const Bytes forth[] = {ab, bc}, back[] = {bc, ab};
    CAPTURE(backend->name);
    CHECK(Equal(Fold(*backend, forth, a.size(), 2), Fold(*backend, back, a.size(), 2)));
    CHECK(Fold(*backend, {}, a.size(), 2).size() == 0);
    CHECK(Equal(Fold(*backend, {forth, 1}, a.size(), 2), ab));
  }
}

TEST_CASE("Fold and negate refuse too little room and payloads of another chunk") {
  for (const Backend* backend : All()) {
    CAPTURE(backend->name);
    Buffer a(200), b(200);
    StoreAt(b, 3, 2, 5);
    const Buffer payload = Encode(Scalar(), Key(), a, b, 2);
    const Bytes one[] = {payload};
    Buffer scratch(FoldScratchBytes(2)), out(MaxEncodedBytes(202, 2));
    size_t bytes = 1;
    CHECK(backend->fold(std::span(one), 202, 2, scratch, out, &bytes) == DecodeStatus::kMalformed);
    CHECK(bytes == 0);
    CHECK(backend->negate(payload, 202, 2, scratch, out, &bytes) == DecodeStatus::kMalformed);
    const MutableBytes small = MutableBytes(out).first(MaxEncodedBytes(200, 2) - 1);
    CHECK(backend->fold(std::span(one), 200, 2, scratch, small, &bytes) == DecodeStatus::kTooLarge);
    const MutableBytes little = MutableBytes(scratch).first(FoldScratchBytes(2) - 1);
    CHECK(backend->negate(payload, 200, 2, little, out, &bytes) == DecodeStatus::kTooLarge);
  }
}

}  // namespace
}  // namespace deltawire::kernels::test::group_test
