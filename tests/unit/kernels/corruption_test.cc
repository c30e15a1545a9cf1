// What decoders do with bytes that no encoder wrote. Payloads and data end exactly where their
// allocations end, so a sanitizer sees every byte that is read or written too far.
#include <catch2/catch.hpp>

#include "tests/unit/kernels/kernel_data.h"

namespace deltawire::kernels::test::corruption_test {
namespace {

const DigestKey& Key() {
  static const DigestKey key(1);
  return key;
}

struct Sample {
  Buffer old_data, new_data, payload;
};

Sample MakeSample(unsigned width, size_t elements, double density, Change how, uint64_t seed) {
  Random random(seed);
  Buffer a(elements * width), b(elements * width);
  a.Fill(random);
  std::memcpy(b.data(), a.data(), a.size());
  Mutate(b, width, density, how, random);
  Buffer payload = Encode(Scalar(), Key(), a, b, width);
  return {std::move(a), std::move(b), std::move(payload)};
}

TEST_CASE("Every truncation and every appended byte is refused") {
  for (const Backend* backend : All()) {
    for (const unsigned width : kWidths) {
      for (const double density : {0.02, 1.0}) {
        const Sample s = MakeSample(width, 700, density, Change::kAny, width);
        CAPTURE(backend->name, width, density);
        for (size_t n = 0; n < s.payload.size(); ++n) {
          CAPTURE(n);
          const Buffer cut(Bytes(s.payload).first(n), 0);
          REQUIRE(backend->validate(cut, s.old_data.size(), width, nullptr) ==
                  DecodeStatus::kTruncated);
          Buffer data(s.old_data, 0);
          uint64_t digest = 0;
          REQUIRE(backend->decode_apply(Key(), cut, data, width, 0, &digest) != DecodeStatus::kOk);
          REQUIRE(Equal(data, s.old_data));
        }
        Buffer longer(s.payload.size() + 1);
        std::memcpy(longer.data(), s.payload.data(), s.payload.size());
        REQUIRE(backend->validate(longer, s.old_data.size(), width, nullptr) ==
                DecodeStatus::kMalformed);
      }
    }
  }
}

TEST_CASE("A payload for another size or width is refused") {
  for (const Backend* backend : All()) {
    const Sample s = MakeSample(2, 1000, 0.1, Change::kSmall, 3);
    CAPTURE(backend->name);
    CHECK(backend->validate(s.payload, 1998, 2, nullptr) == DecodeStatus::kMalformed);
    CHECK(backend->validate(s.payload, 2002, 2, nullptr) == DecodeStatus::kMalformed);
    CHECK(backend->validate(s.payload, 2000, 4, nullptr) == DecodeStatus::kMalformed);
    CHECK(backend->validate(s.payload, 2000, 3, nullptr) == DecodeStatus::kMalformed);
    CHECK(backend->validate(s.payload, 0, 2, nullptr) == DecodeStatus::kMalformed);
  }
}

/// Validates a corrupt payload. If it passes, applying it must stay within the chunk, and encoding
/// the change that it makes must give the same payload again.
void CheckCorrupt(const Backend& backend, Bytes corrupt, Bytes old_data, unsigned width) {
  uint64_t changed = 0;
  const DecodeStatus status = backend.validate(corrupt, old_data.size(), width, &changed);
  REQUIRE(status == Scalar().validate(corrupt, old_data.size(), width, nullptr));
  Buffer data(old_data, 0);
  uint64_t digest = 0;
  const DecodeStatus applied =
      backend.decode_apply(Key(), corrupt, data, width, backend.digest(Key(), old_data), &digest);
  // Where validate refuses, decode_apply may still accept; then the digest must follow what it did.
  if (applied == DecodeStatus::kOk) REQUIRE(digest == Scalar().digest(Key(), data));
  if (status != DecodeStatus::kOk) return;
  REQUIRE(applied == DecodeStatus::kOk);
  REQUIRE(CountChanged(old_data, data, width) == changed);
  REQUIRE(Equal(Encode(Scalar(), Key(), old_data, data, width), corrupt));
}

TEST_CASE("Random corruptions are refused or a valid delta of its own") {
  size_t refused = 0, accepted = 0;
  for (const Backend* backend : All()) {
    for (const unsigned width : kWidths) {
      for (const double density : {0.01, 0.3, 1.0}) {
        const uint64_t seed = 1000 * width + static_cast<uint64_t>(100 * density);
        const Sample s = MakeSample(width, 600, density, Change::kBoundary, seed);
        Random random(seed + 1);
        for (int round = 0; round < 1500; ++round) {
          CAPTURE(backend->name, width, density, seed, round);
          Buffer corrupt(s.payload, 0);
          const size_t edits = 1 + random.Below(3);
          for (size_t i = 0; i < edits; ++i) {
            // Half of the edits go to the header and the table, where they do most harm.
            const size_t span = random.Below(2) != 0 ? corrupt.size() : 28;
            std::byte& b = corrupt.data()[random.Below(span)];
            b = random.Below(2) != 0 ? static_cast<std::byte>(random.Next())
                                     : b ^ static_cast<std::byte>(1u << random.Below(8));
          }
          CheckCorrupt(*backend, corrupt, s.old_data, width);
          (backend->validate(corrupt, s.old_data.size(), width, nullptr) == DecodeStatus::kOk
               ? accepted
               : refused)++;
        }
      }
    }
  }
  // Both outcomes must occur, or one side of the check has not been tried.
  CHECK(refused > 1000);
  CHECK(accepted > 1000);
}

TEST_CASE("Random corruptions of two blocks are refused or a valid delta of their own") {
  for (const Backend* backend : All()) {
    for (const unsigned width : kWidths) {
      const uint64_t seed = 50 + width;
      const Sample s = MakeSample(width, kBlockElements + 40, 0.001, Change::kAny, seed);
      Random random(seed);
      for (int round = 0; round < 60; ++round) {
        CAPTURE(backend->name, width, seed, round);
        Buffer corrupt(s.payload, 0);
        corrupt.data()[random.Below(corrupt.size())] = static_cast<std::byte>(random.Next());
        CheckCorrupt(*backend, corrupt, s.old_data, width);
      }
    }
  }
}

TEST_CASE("Each rule of the format has a payload that breaks it alone") {
  // As in the example of docs/delta_format.md, 3 of 300 elements of width 2 change, by 1, -1 and
  // -32768. The gaps are 0, 1 and 256; k = 6 and k' = 1.
  Buffer a(600), b(600);
  StoreAt(b, 0, 2, 1);
  StoreAt(b, 2, 2, 0xffff);
  StoreAt(b, 259, 2, 0x8000);
  const Buffer good = Encode(Scalar(), Key(), a, b, 2);
  // The header has 8 bytes and the three columns 4 each. No rows follow, since the columns of a
  // single block are their minima. The stream, with each number's highest bit first: bits 0 to 17
  // low 000000 000001 000000, 18 to 20 signs 0 1 1, 21 to 27 quotients 1 1 00001, 28 large low 0,
  // 29 and 30 large quotient 01, 31 to 36 order 001111 (15), 37 size 1 (u = 1), 38 to 52 the 15
  // lower bits of 32766, and 3 bits of padding.
  REQUIRE(good.size() == 27);
  struct Edit {
    const char* rule;
    size_t at;
    uint8_t flip;  // the bits to flip
  };
  const Edit edits[] = {{"format", 0, 1},
                        {"codec", 1, 2},
                        {"width", 2, 6},
                        {"reserved", 3, 1},
                        {"elements", 4, 1},
                        {"column width not exact", 8, 1},
                        {"column width", 12, 8},
                        {"reserved bit of a column", 11, 0x80},
                        {"changed beyond the block", 9, 0x40},
                        {"large beyond changed", 12, 0x80},
                        {"more bytes than there are", 16, 0x20},
                        {"sign of the lowest number", 20 + 2, 0x10},
                        {"position beyond the block", 20 + 3, 0x08},
                        {"large position beyond the changes", 20 + 3, 0x60},
                        {"order not the right one", 20 + 3, 0x80},
                        {"size beyond the width", 20 + 4, 0x20},
                        {"padding", 20 + 6, 0x80}};
  for (const Backend* backend : All()) {
    REQUIRE(backend->validate(good, 600, 2, nullptr) == DecodeStatus::kOk);
    for (const Edit& e : edits) {
      CAPTURE(backend->name, e.rule, e.at);
      Buffer bad(good, 0);
      bad.data()[e.at] ^= static_cast<std::byte>(e.flip);
      CHECK(backend->validate(bad, 600, 2, nullptr) != DecodeStatus::kOk);
    }
  }
}

TEST_CASE("A raw block that sparse would make smaller is refused and the other way round") {
  for (const Backend* backend : All()) {
    CAPTURE(backend->name);
    // One of four elements changes. Sparse is shorter, so it is the one encoding; this one is raw.
    const uint8_t raw[] = {kFormat, 1, 2, 0, 4, 0, 0, 0, 1 << 5, 0, 0, 0, 0, 0,
                           0,       0, 0, 1, 0, 0, 5, 0, 0,      0, 0, 0, 0, 0};
    const Buffer lazy(std::as_bytes(std::span(raw)), 0);
    CHECK(backend->validate(lazy, 8, 2, nullptr) == DecodeStatus::kMalformed);
    // One element of width 1: sparse takes one byte as well, which is not fewer than raw.
    const uint8_t sparse[] = {kFormat, 1, 1, 0, 1, 0,      0, 0, 1 << 5, 0,   0,
                              0,       0, 0, 0, 0, 1 << 5, 0, 0, 0,      0x02};
    const Buffer eager(std::as_bytes(std::span(sparse)), 0);
    // The block itself has one byte, so a stream of one byte can only be read as raw. It says a
    // difference of 2, in the one encoding that this has.
    CHECK(backend->validate(eager, 1, 1, nullptr) == DecodeStatus::kOk);
    // Both of two elements of width 2 change. Sparse takes four bits, which fit into one
    // byte, but this stream has three bytes.
    const uint8_t long_sparse[] = {kFormat, 1, 2, 0, 2,      0, 0, 0, 2 << 5, 0, 0, 0,
                                   0,       0, 0, 0, 3 << 5, 0, 0, 0, 0x0c,   0, 0};
    const Buffer padded(std::as_bytes(std::span(long_sparse)), 0);
    CHECK(backend->validate(padded, 4, 2, nullptr) == DecodeStatus::kMalformed);
  }
}

}  // namespace
}  // namespace deltawire::kernels::test::corruption_test
