// Proofs of a token against OpenSSL-independent values, and that each input counts.
#include "common/security/token_proof.h"

#include <catch2/catch.hpp>
#include <set>
#include <vector>

#include "common/base/status.h"

namespace deltawire::security::token_proof_test {
namespace {

std::string Hex(const Proof& proof) {
  std::string hex;
  for (const std::byte b : proof) hex += fmt::format("{:02x}", static_cast<unsigned>(b));
  return hex;
}

}  // namespace

TEST_CASE("a proof is the documented HMAC") {
  const std::vector<std::byte> ticket(16, std::byte{0xA0});
  // python3: hmac.new(b"secret-secret-secret", b"deltawire bulk 1" + b"\xa0" * 16 +
  //   (258).to_bytes(2, "little") + bytes(32), "sha256").hexdigest()
  CHECK(Hex(ProveToken("secret-secret-secret", ticket, 258, {})) ==
        "158166f2278f3e6c0f03b2a48f6bed4fc1189eb4bd0fe2e594cb54ceb655436b");
}

TEST_CASE("token, ticket, stream and binding each change the proof") {
  const std::vector<std::byte> ticket(16, std::byte{1}), other(16, std::byte{2});
  ChannelBinding binding{};
  binding[31] = std::byte{1};
  std::set<std::string> all;
  for (const char* token : {"token-of-a-receiver", "token-of-another-one"}) {
    for (const auto& t : {ticket, other}) {
      for (const uint16_t stream : {0, 1, 256}) {
        all.insert(Hex(ProveToken(token, t, stream, {})));
        all.insert(Hex(ProveToken(token, t, stream, binding)));
      }
    }
  }
  CHECK(all.size() == 24);
  const Proof a = ProveToken("token-of-a-receiver", ticket, 0, binding);
  Proof b = a;
  CHECK(SameProof(a, b));
  b[0] ^= std::byte{0x80};
  CHECK_FALSE(SameProof(a, b));
}

TEST_CASE("random tokens differ and secrets compare by content") {
  const std::string a = RandomToken(), b = RandomToken();
  CHECK(a.size() == 64);
  CHECK(a != b);
  CHECK(SameSecret(a, std::string(a)));
  CHECK_FALSE(SameSecret(a, a.substr(1)));
  CHECK_FALSE(SameSecret("", "x"));
}

}  // namespace deltawire::security::token_proof_test
