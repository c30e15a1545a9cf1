#include "common/wire/frame.h"

#include <catch2/catch.hpp>
#include <random>

#include "common/base/checksum.h"

namespace deltawire::wire::frame_test {
namespace {

using Catch::Matchers::Contains;

constexpr FrameType kAllTypes[] = {FrameType::kHello,     FrameType::kWelcome,    FrameType::kHave,
                                   FrameType::kChunkFull, FrameType::kChunkDelta, FrameType::kEnd,
                                   FrameType::kPing,      FrameType::kError};

bool IsChunk(FrameType t) { return t == FrameType::kChunkFull || t == FrameType::kChunkDelta; }

/// A header of `type` in which every field that the type may use is random.
FrameHeader RandomHeader(FrameType type, std::mt19937_64& rng) {
  FrameHeader h{.type = type};
  if (IsChunk(type)) {
    h.chunk = static_cast<uint32_t>(rng());
    h.digest_after = rng();
  }
  if (IsChunk(type) || type == FrameType::kEnd) {
    h.epoch = rng();
    h.version = rng();
  }
  if (type == FrameType::kChunkDelta) h.digest_before = rng();
  if (const uint32_t max = MaxPayload(type); max != 0) {
    h.payload_bytes = static_cast<uint32_t>(rng() % (uint64_t{max} + 1));
  }
  h.payload_xxh3 = type == FrameType::kChunkFull ? 0 : h.payload_bytes == 0 ? Xxh3({}) : rng();
  return h;
}

/// `bytes` with a header checksum that fits them, so that DecodeHeader gets to the check behind the
/// checksum's.
HeaderBytes Resealed(HeaderBytes bytes) {
  constexpr size_t kHashAt = kFrameHeaderBytes - 8;
  StoreLe<uint64_t>(bytes.data() + kHashAt, Xxh3(Bytes(bytes).first(kHashAt)));
  return bytes;
}

std::string Refusal(const StatusOr<FrameHeader>& h, StatusCode code) {
  REQUIRE_FALSE(h.ok());
  CHECK(h.status().code() == code);
  return std::string(MessageOf(h.status()));
}

TEST_CASE("headers of every type survive a round trip") {
  const uint64_t seed = 0x5EED0001;
  CAPTURE(seed);
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 500; ++round) {
    for (const FrameType type : kAllTypes) {
      const FrameHeader h = RandomHeader(type, rng);
      CAPTURE(round, std::string(ToString(type)));
      const auto back = DecodeHeader(EncodeHeader(h));
      REQUIRE(back.ok());
      CHECK(*back == h);
    }
  }
}

TEST_CASE("a frame without payload carries the hash of no bytes") {
  const auto back = DecodeHeader(EncodeHeader({.type = FrameType::kPing, .payload_xxh3 = 77}));
  REQUIRE(back.ok());
  CHECK(back->payload_xxh3 == Xxh3({}));
  CHECK(CheckPayload(*back, Xxh3({})).ok());

  HeaderBytes bytes = EncodeHeader({.type = FrameType::kPing});
  StoreLe<uint64_t>(bytes.data() + 48, uint64_t{0});
  CHECK_THAT(Refusal(DecodeHeader(Resealed(bytes)), StatusCode::kDataLoss),
             Contains("Ping") && Contains("corrupt"));
}

TEST_CASE("a whole chunk carries no checksum beside its digest") {
  const FrameHeader h{.type = FrameType::kChunkFull, .payload_bytes = 9, .payload_xxh3 = 77};
  HeaderBytes bytes = EncodeHeader(h);
  const auto back = DecodeHeader(bytes);
  REQUIRE(back.ok());
  CHECK(back->payload_xxh3 == 0);
  for (unsigned bit = 0; bit < 64; ++bit) {
    StoreLe<uint64_t>(bytes.data() + 48, uint64_t{1} << bit);
    CHECK_THAT(Refusal(DecodeHeader(Resealed(bytes)), StatusCode::kDataLoss),
               Contains("ChunkFull") && Contains("payload_xxh3"));
  }
}

TEST_CASE("every single-bit flip of a valid header is refused") {
  const uint64_t seed = 0x5EED0002;
  CAPTURE(seed);
  std::mt19937_64 rng(seed);
  for (const FrameType type : kAllTypes) {
    const HeaderBytes good = EncodeHeader(RandomHeader(type, rng));
    for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
      HeaderBytes bad = good;
      bad[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
      CAPTURE(std::string(ToString(type)), bit);
      const auto h = DecodeHeader(bad);
      REQUIRE_FALSE(h.ok());
      const bool in_wire_version = bit / 8 == 4;
      CHECK(h.status().code() ==
            (in_wire_version ? StatusCode::kUnimplemented : StatusCode::kDataLoss));
    }
  }
}

TEST_CASE("a header of the wrong length is refused") {
  const HeaderBytes good = EncodeHeader({.type = FrameType::kPing});
  for (size_t n = 0; n < good.size(); ++n) {
    // The copy on the heap has exactly this length, so that a sanitizer sees a read beyond it.
    const std::vector<std::byte> cut(good.begin(), good.begin() + static_cast<ptrdiff_t>(n));
    CAPTURE(n);
    CHECK_THAT(Refusal(DecodeHeader(cut), StatusCode::kDataLoss), Contains("stream was cut"));
  }
  std::vector<std::byte> longer(good.begin(), good.end());
  longer.push_back({});
  Refusal(DecodeHeader(longer), StatusCode::kDataLoss);
}

TEST_CASE("bytes of another protocol are named in the refusal") {
  const struct {
    std::string_view head;
    std::string hint;
  } peers[] = {{"PRI * HTTP/2.0", "gRPC"},
               {"GET / HTTP/1.1", "HTTP"},
               {std::string_view("\x16\x03\x01\x02\x00", 5), "TLS"},
               {"DWF2", "check that the peer is a deltawire bulk port"}};
  for (const auto& peer : peers) {
    HeaderBytes bytes{};
    std::ranges::copy(AsBytes(peer.head), bytes.begin());
    CHECK_THAT(Refusal(DecodeHeader(bytes), StatusCode::kDataLoss),
               Contains("not a deltawire frame") && Contains(peer.hint));
  }
}

TEST_CASE("another wire version is told apart from corruption") {
  for (const unsigned version : {0u, 1u, 2u, 3u, 5u, 255u}) {
    HeaderBytes bytes = EncodeHeader({.type = FrameType::kPing});
    bytes[4] = static_cast<std::byte>(version);
    const std::string want = fmt::format("wire version {}, this end {}", version, kWireVersion);
    // The version counts whether or not the checksum fits: another version may compute it in
    // another way.
    CHECK_THAT(Refusal(DecodeHeader(bytes), StatusCode::kUnimplemented),
               Contains(want) && Contains("same deltawire release"));
    CHECK_THAT(Refusal(DecodeHeader(Resealed(bytes)), StatusCode::kUnimplemented), Contains(want));
  }
}

TEST_CASE("unknown types are refused") {
  for (unsigned type = 0; type < 256; ++type) {
    HeaderBytes bytes = EncodeHeader({.type = FrameType::kPing});
    bytes[5] = static_cast<std::byte>(type);
    if (type == static_cast<unsigned>(FrameType::kChunkFull)) StoreLe<uint64_t>(&bytes[48], 0u);
    const auto h = DecodeHeader(Resealed(bytes));
    CAPTURE(type);
    CHECK(h.ok() == (type >= 1 && type <= 8));
    if (!h.ok()) {
      CHECK_THAT(Refusal(h, StatusCode::kDataLoss), Contains(fmt::format("frame type {}", type)));
    }
  }
}

TEST_CASE("reserved bits are refused one by one") {
  for (unsigned bit = 0; bit < 16; ++bit) {
    HeaderBytes bytes = EncodeHeader({.type = FrameType::kWelcome});
    StoreLe<uint16_t>(bytes.data() + 6, static_cast<uint16_t>(1u << bit));
    CAPTURE(bit);
    CHECK_THAT(Refusal(DecodeHeader(Resealed(bytes)), StatusCode::kDataLoss),
               Contains("Welcome") && Contains("reserved"));
  }
}

TEST_CASE("a field that the type leaves zero is refused when set") {
  const struct {
    std::string name;
    void (*set)(FrameHeader&);
    bool (*used)(FrameType);
  } fields[] = {
      {"chunk", [](FrameHeader& h) { h.chunk = 1u << 31; }, IsChunk},
      {"epoch", [](FrameHeader& h) { h.epoch = uint64_t{1} << 63; },
       [](FrameType t) { return IsChunk(t) || t == FrameType::kEnd; }},
      {"version", [](FrameHeader& h) { h.version = 1; },
       [](FrameType t) { return IsChunk(t) || t == FrameType::kEnd; }},
      {"digest_before", [](FrameHeader& h) { h.digest_before = 1; },
       [](FrameType t) { return t == FrameType::kChunkDelta; }},
      {"digest_after", [](FrameHeader& h) { h.digest_after = 1; }, IsChunk},
  };
  for (const FrameType type : kAllTypes) {
    for (const auto& field : fields) {
      FrameHeader h{.type = type};
      field.set(h);
      const auto back = DecodeHeader(EncodeHeader(h));
      CAPTURE(std::string(ToString(type)), field.name);
      CHECK(back.ok() == field.used(type));
      if (!back.ok()) {
        CHECK_THAT(Refusal(back, StatusCode::kDataLoss),
                   Contains(std::string(ToString(type))) && Contains(field.name + " ="));
      }
    }
  }
}

TEST_CASE("payload limits of every type hold to the byte") {
  for (const FrameType type : kAllTypes) {
    const uint32_t max = MaxPayload(type);
    CAPTURE(std::string(ToString(type)), max);
    CHECK(DecodeHeader(EncodeHeader({.type = type, .payload_bytes = max})).ok());
    for (const uint32_t bytes : {max + 1, ~uint32_t{0}}) {
      CHECK_THAT(Refusal(DecodeHeader(EncodeHeader({.type = type, .payload_bytes = bytes})),
                         StatusCode::kResourceExhausted),
                 Contains(std::string(ToString(type))) && Contains(std::to_string(bytes)) &&
                     Contains(std::to_string(max)));
    }
  }
  CHECK(MaxPayload(FrameType::kPing) == 0);
  CHECK(MaxPayload(FrameType::kEnd) == 40);
  CHECK(MaxPayload(FrameType::kHello) == 8192);
  CHECK(MaxPayload(FrameType::kChunkFull) == (8u << 20) + 4096);
}

TEST_CASE("a corrupt payload is refused and named") {
  FrameHeader h{.type = FrameType::kChunkDelta,
                .chunk = 41,
                .payload_bytes = 9,
                .epoch = 2,
                .version = 1234,
                .payload_xxh3 = 5};
  CHECK(CheckPayload(h, 5).ok());
  const Status s = CheckPayload(h, 6);
  CHECK(s.code() == StatusCode::kDataLoss);
  CHECK_THAT(std::string(MessageOf(s)), Contains("ChunkDelta") && Contains("chunk 41") &&
                                            Contains("version 1234") && Contains("connect again"));
  h.type = FrameType::kHave;
  CHECK_THAT(std::string(MessageOf(CheckPayload(h, 6))), Contains("Have") && !Contains("chunk 41"));
}

TEST_CASE("a frame's header begins with the letters DWF1") {
  CHECK(AsChars(EncodeHeader({.type = FrameType::kPing})).substr(0, 4) == "DWF1");
}

}  // namespace
}  // namespace deltawire::wire::frame_test
