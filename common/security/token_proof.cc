#include "common/security/token_proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <cstdlib>
#include <vector>

#include "common/base/log.h"

namespace deltawire::security {
namespace {

constexpr std::string_view kLabel = "deltawire bulk 1";

void Append(std::vector<std::byte>& out, Bytes bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

Bytes BytesOf(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

using Sha256 = std::array<unsigned char, 32>;

Sha256 DigestOf(std::string_view text) {
  Sha256 digest{};
  unsigned size = 0;
  EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr);
  return digest;
}

}  // namespace

Proof ProveToken(std::string_view token, Bytes ticket, uint16_t stream,
                 const ChannelBinding& binding) {
  std::vector<std::byte> message;
  Append(message, BytesOf(kLabel));
  Append(message, ticket);
  message.push_back(static_cast<std::byte>(stream & 0xff));
  message.push_back(static_cast<std::byte>(stream >> 8));
  Append(message, binding);
  Proof proof{};
  unsigned size = 0;
  HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()),
       reinterpret_cast<const unsigned char*>(message.data()), message.size(),
       reinterpret_cast<unsigned char*>(proof.data()), &size);
  return proof;
}

bool SameProof(const Proof& a, const Proof& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

bool SameSecret(std::string_view a, std::string_view b) {
  // Digests have one length, so the time does not reveal the secret's length either.
  const Sha256 of_a = DigestOf(a), of_b = DigestOf(b);
  return CRYPTO_memcmp(of_a.data(), of_b.data(), of_a.size()) == 0;
}

std::string RandomToken() {
  std::array<unsigned char, 32> bytes{};
  if (RAND_bytes(bytes.data(), bytes.size()) != 1) {
    LogError("OpenSSL could not make random numbers");
    std::abort();
  }
  std::string token;
  for (const unsigned char byte : bytes) token += fmt::format("{:02x}", byte);
  return token;
}

}  // namespace deltawire::security
