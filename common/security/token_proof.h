// A proof that a bulk stream's peer holds a token, without sending the token: HMAC-SHA256 over the
// ticket, the stream and its TLS connection's binding. Also random tokens, and names of secrets for
// comparison.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/bytes.h"

namespace deltawire::security {

using Proof = std::array<std::byte, 32>;
/// A TLS connection's exporter value (RFC 9266, "EXPORTER-Channel-Binding"); zeros without TLS.
using ChannelBinding = std::array<std::byte, 32>;

/// Returns the HMAC-SHA256, with the token as key, of "deltawire bulk 1", the ticket's bytes, the
/// stream's number (2 bytes, little-endian) and the binding.
Proof ProveToken(std::string_view token, Bytes ticket, uint16_t stream,
                 const ChannelBinding& binding);

/// Compares in a time that does not reveal where the two differ.
bool SameProof(const Proof& a, const Proof& b);
bool SameSecret(std::string_view a, std::string_view b);

/// Returns 32 random bytes as 64 hex digits.
std::string RandomToken();

}  // namespace deltawire::security
