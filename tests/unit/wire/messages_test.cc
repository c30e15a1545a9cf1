#include "common/wire/messages.h"

#include <catch2/catch.hpp>
#include <random>

#include "common/wire/frame.h"

namespace deltawire::wire::messages_test {
namespace {

using Catch::Matchers::Contains;

template <typename T>
std::string Refusal(const StatusOr<T>& m, StatusCode code) {
  REQUIRE_FALSE(m.ok());
  CHECK(m.status().code() == code);
  return std::string(MessageOf(m.status()));
}

Hello RandomHello(std::mt19937_64& rng) {
  Hello m;
  for (std::byte& b : m.ticket) b = static_cast<std::byte>(rng());
  m.fingerprint = {rng(), rng()};
  m.streams = static_cast<uint16_t>(1 + rng() % kMaxStreams);
  m.stream = static_cast<uint16_t>(rng() % m.streams);
  if (rng() % 2 == 0) {
    for (std::byte& b : m.proof.emplace()) b = static_cast<std::byte>(rng());
  }
  return m;
}

Have RandomHave(std::mt19937_64& rng, size_t chunks, size_t history) {
  Have m;
  m.held = {.lineage = {rng(), rng()}, .id = {rng(), rng()}, .root = rng()};
  for (size_t i = 0; i < history; ++i) m.history.push_back({rng(), rng()});
  for (size_t i = 0; i < chunks; ++i) {
    Have::Entry e;
    if (rng() % 4 != 0) e = {.version = rng(), .digest = rng(), .depth = 0};
    if (history > 0) e.depth = static_cast<uint8_t>(rng() % (history + 1));
    m.chunks.push_back(e);
  }
  return m;
}

/// Checks that `decode` refuses every proper prefix of `good`, and `good` with one more byte. Each
/// prefix is copied to the heap at its own length, so that a sanitizer sees a read beyond it.
template <typename Decode>
void CheckLengths(const std::vector<std::byte>& good, Decode decode) {
  for (size_t n = 0; n < good.size(); ++n) {
    CAPTURE(n);
    const std::vector<std::byte> cut(good.begin(), good.begin() + static_cast<ptrdiff_t>(n));
    CHECK_THAT(Refusal(decode(cut), StatusCode::kDataLoss), Contains("bytes"));
  }
  std::vector<std::byte> longer = good;
  longer.push_back({});
  CHECK_THAT(Refusal(decode(longer), StatusCode::kDataLoss), Contains("too long"));
}

TEST_CASE("Hello survives a round trip and its lengths are strict") {
  const uint64_t seed = 0x5EED0003;
  CAPTURE(seed);
  std::mt19937_64 rng(seed);
  for (int i = 0; i < 500; ++i) {
    const Hello m = RandomHello(rng);
    const auto back = DecodeHello(Encode(m));
    REQUIRE(back.ok());
    CHECK(*back == m);
  }
  CheckLengths(Encode(Hello{}), DecodeHello);
}

TEST_CASE("Hello's stream numbers are checked") {
  CHECK(DecodeHello(Encode(Hello{.stream = 63, .streams = 64})).ok());
  CHECK_THAT(Refusal(DecodeHello(Encode(Hello{.stream = 0, .streams = 65})),
                     StatusCode::kResourceExhausted),
             Contains("65") && Contains("64") && Contains("fewer streams"));
  CHECK_THAT(Refusal(DecodeHello(Encode(Hello{.stream = 0, .streams = 0})), StatusCode::kDataLoss),
             Contains("stream 0 of 0"));
  CHECK_THAT(Refusal(DecodeHello(Encode(Hello{.stream = 4, .streams = 4})), StatusCode::kDataLoss),
             Contains("stream 4 of 4"));
}

TEST_CASE("reserved bits of Hello and Have are refused one by one") {
  for (unsigned bit = 0; bit < 32; ++bit) {
    CAPTURE(bit);
    auto hello = Encode(Hello{});
    StoreLe<uint32_t>(hello.data() + 36, 1u << bit);
    CHECK_THAT(Refusal(DecodeHello(hello), StatusCode::kDataLoss),
               Contains("Hello") && Contains("reserved"));
    if (bit < 8) continue;  // byte 44 of Have is no reserved byte, but its history
    auto have = Encode(Have{.chunks = {{1, 2}}});
    StoreLe<uint32_t>(have.data() + 44, 1u << bit);
    CHECK_THAT(Refusal(DecodeHave(have, 1), StatusCode::kDataLoss),
               Contains("Have") && Contains("reserved"));
  }
}

TEST_CASE("Have survives a round trip and its lengths are strict") {
  const uint64_t seed = 0x5EED0004;
  CAPTURE(seed);
  std::mt19937_64 rng(seed);
  for (size_t chunks = 0; chunks < 200; ++chunks) {
    const Have m = RandomHave(rng, chunks, chunks % (kMaxHistory + 1));
    const auto back = DecodeHave(Encode(m), static_cast<uint32_t>(chunks));
    REQUIRE(back.ok());
    CHECK(*back == m);
  }
  for (const size_t history : {0, 1, 8}) {
    CheckLengths(Encode(RandomHave(rng, 3, history)), [](Bytes b) { return DecodeHave(b, 3); });
  }
}

TEST_CASE("Have's history is bounded, and no chunk has more of it than is named") {
  Have m;
  m.held.id = {1, 7};
  m.history = {{1, 6}, {1, 5}};
  m.chunks = {{7, 1, 2}, {7, 2, 0}};
  auto bytes = Encode(m);
  CHECK(bytes.size() == 48 + 2 * 16 + 2 * 16 + 2);
  CHECK(DecodeHave(bytes, 2).ok());
  bytes[bytes.size() - 1] = std::byte{3};
  CHECK_THAT(Refusal(DecodeHave(bytes, 2), StatusCode::kDataLoss),
             Contains("3 deltas of chunk 1") && Contains("names 2"));
  bytes[44] = std::byte{9};
  CHECK_THAT(Refusal(DecodeHave(bytes, 2), StatusCode::kResourceExhausted), Contains("9 deltas"));
  m.history.resize(9);
  CHECK_THAT(Refusal(DecodeHave(Encode(m), 2), StatusCode::kResourceExhausted),
             Contains("9 deltas"));
}

TEST_CASE("Have must list as many chunks as the layout has") {
  const auto bytes = Encode(Have{.chunks = std::vector<Have::Entry>(3)});
  for (const uint32_t chunks : {0u, 2u, 4u, ~0u}) {
    CAPTURE(chunks);
    CHECK_THAT(Refusal(DecodeHave(bytes, chunks), StatusCode::kDataLoss),
               Contains("lists 3 chunks") && Contains(fmt::format("layout has {}", chunks)) &&
                   Contains("describe the model again"));
  }
}

TEST_CASE("Have's claimed count takes no memory that its bytes do not back") {
  // 2^32 - 1 entries would take 64 GiB, and the count agrees with the caller's. Only the missing
  // bytes show that it is wrong.
  auto bytes = Encode(Have{});
  StoreLe<uint32_t>(bytes.data() + 40, ~uint32_t{0});
  CHECK_THAT(Refusal(DecodeHave(bytes, ~uint32_t{0}), StatusCode::kDataLoss), Contains("48 bytes"));
}

TEST_CASE("Have's size alone says whether it can be of so many chunks") {
  const uint64_t seed = 0x5EED0006;
  CAPTURE(seed);
  std::mt19937_64 rng(seed);
  for (const uint32_t chunks : {0u, 1u, 3u, 1000u}) {
    uint64_t least = ~uint64_t{0}, most = 0;
    for (size_t history = 0; history <= kMaxHistory; ++history) {
      const uint64_t bytes = Encode(RandomHave(rng, chunks, history)).size();
      CHECK(CheckHaveSize(bytes, chunks).ok());
      least = std::min(least, bytes);
      most = std::max(most, bytes);
    }
    for (const uint64_t bytes : {least - 1, most + 1, uint64_t{0}, uint64_t{kMaxHavePayload}}) {
      CAPTURE(chunks, bytes);
      const Status s = CheckHaveSize(bytes, chunks);
      CHECK(s.code() == StatusCode::kDataLoss);
      CHECK_THAT(std::string(MessageOf(s)), Contains(fmt::format("{} chunks", chunks)));
    }
  }
  // The size of so many entries does not fit into 32 bits, so it must not wrap round.
  CHECK_FALSE(CheckHaveSize(48, ~uint32_t{0}).ok());
}

TEST_CASE("End survives a round trip and its length is strict") {
  const uint64_t seed = 0x5EED0007;
  CAPTURE(seed);
  std::mt19937_64 rng(seed);
  for (int i = 0; i < 500; ++i) {
    const End m{{rng(), rng()}, rng(), rng(), rng()};
    const auto bytes = Encode(m);
    CHECK(bytes.size() == 40);
    const auto back = DecodeEnd(bytes);
    REQUIRE(back.ok());
    CHECK(*back == m);
  }
  CheckLengths(Encode(End{}), DecodeEnd);
}

TEST_CASE("Have beyond its limit is refused by size alone") {
  // No byte of this memory is touched, so it takes no physical memory.
  const std::unique_ptr<std::byte[]> big(new std::byte[kMaxHavePayload + size_t{1}]);
  CHECK_THAT(Refusal(DecodeHave({big.get(), kMaxHavePayload + size_t{1}}, 1),
                     StatusCode::kResourceExhausted),
             Contains(std::to_string(kMaxHavePayload)));
}

TEST_CASE("WireError survives a round trip and its lengths are strict") {
  const uint64_t seed = 0x5EED0005;
  CAPTURE(seed);
  std::mt19937_64 rng(seed);
  const std::string_view pieces[] = {"a",    "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80",
                                     "\x7F", "\n"};
  for (int i = 0; i < 300; ++i) {
    WireError m{static_cast<uint32_t>(1 + rng() % 16), ""};
    for (uint64_t n = rng() % 1000; n > 0; --n) m.message += pieces[rng() % std::size(pieces)];
    const auto back = DecodeWireError(Encode(m));
    REQUIRE(back.ok());
    CHECK(*back == m);
  }
  CheckLengths(Encode(WireError{5, "no such model: m\xC3\xA9"}), DecodeWireError);
}

TEST_CASE("WireError's code is an absl code other than OK") {
  for (const uint32_t code : {1u, 16u}) CHECK(DecodeWireError(Encode(WireError{code, "x"})).ok());
  for (const uint32_t code : {0u, 17u, ~0u}) {
    CHECK_THAT(Refusal(DecodeWireError(Encode(WireError{code, "x"})), StatusCode::kDataLoss),
               Contains(fmt::format("code {}", code)));
  }
}

TEST_CASE("WireError's claimed length is checked against the limit first") {
  auto bytes = Encode(WireError{5, "x"});
  for (const uint32_t claim : {4097u, ~0u}) {
    StoreLe<uint32_t>(bytes.data() + 4, claim);
    CHECK_THAT(Refusal(DecodeWireError(bytes), StatusCode::kResourceExhausted), Contains("4096"));
  }
  StoreLe<uint32_t>(bytes.data() + 4, uint32_t{4096});
  Refusal(DecodeWireError(bytes), StatusCode::kDataLoss);
}

TEST_CASE("WireError refuses what is not UTF-8") {
  const std::string_view bad[] = {"\x80",
                                  "\xC0\x80",
                                  "\xC1\xBF",
                                  "\xC3",
                                  "\xE0\x9F\xBF",
                                  "\xED\xA0\x80",
                                  "\xE2\x82",
                                  "\xF0\x8F\xBF\xBF",
                                  "\xF4\x90\x80\x80",
                                  "\xF5\x80\x80\x80",
                                  "\xFF"};
  for (const std::string_view text : bad) {
    std::vector<std::byte> bytes(8 + text.size());
    StoreLe<uint32_t>(bytes.data(), 5u);
    StoreLe<uint32_t>(bytes.data() + 4, static_cast<uint32_t>(text.size()));
    std::ranges::copy(AsBytes(text), bytes.begin() + 8);
    CHECK_THAT(Refusal(DecodeWireError(bytes), StatusCode::kDataLoss), Contains("UTF-8"));
    // A status with the same text is still sent, with '?' for each stray byte.
    const WireError made = FromStatus(absl::InternalError(std::string(text)));
    CHECK(made.message == std::string(text.size(), '?'));
    CHECK(DecodeWireError(Encode(made)).ok());
  }
}

TEST_CASE("long messages are cut on a character boundary") {
  for (const std::string_view piece : {"a", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"}) {
    for (size_t shift = 0; shift < piece.size(); ++shift) {
      std::string text(shift, '.');
      while (text.size() < 5000) text += piece;
      CAPTURE(piece.size(), shift);
      const WireError e = FromStatus(absl::NotFoundError(text));
      CHECK(e.message.size() <= 4096);
      CHECK(e.message.size() > 4096 - piece.size());
      CHECK((e.message.size() - shift) % piece.size() == 0);
      CHECK(text.compare(0, e.message.size(), e.message) == 0);
      const auto back = DecodeWireError(Encode(WireError{5, text}));
      REQUIRE(back.ok());
      CHECK(back->message == e.message);
    }
  }
  CHECK(FromStatus(absl::NotFoundError(std::string(4096, 'x'))).message.size() == 4096);
}

TEST_CASE("every status code survives the wire") {
  for (int code = 1; code <= 16; ++code) {
    const Status s(static_cast<StatusCode>(code), "chunk 7 of model m");
    const auto back = DecodeWireError(Encode(FromStatus(s)));
    REQUIRE(back.ok());
    CHECK(ToStatus(*back) == s);
  }
}

TEST_CASE("no Error turns into success") {
  CHECK(ToStatus({0, "x"}).code() == StatusCode::kUnknown);
  CHECK(ToStatus({17, "x"}).code() == StatusCode::kUnknown);
  CHECK(FromStatus(absl::OkStatus()).code == static_cast<uint32_t>(StatusCode::kUnknown));
  const Status odd(static_cast<StatusCode>(99), "x");
  CHECK(FromStatus(odd).code == static_cast<uint32_t>(StatusCode::kUnknown));
}

}  // namespace
}  // namespace deltawire::wire::messages_test
