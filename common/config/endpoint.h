// A host and port in an option. Errors are kInvalidArgument and describe the mistake in the text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace deltawire {

struct Endpoint {
  std::string host = "127.0.0.1";
  uint16_t port = 0;
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};
/// Parses "host:port", "[v6]:port" or ":port" (loopback). Port 0 lets the kernel choose.
StatusOr<Endpoint> ParseEndpoint(std::string_view text);
std::string ToString(const Endpoint& e);
/// Returns true for 127.0.0.0/8, ::1 and "localhost".
bool IsLoopback(const Endpoint& e);
/// Returns true if the host is an IPv4 or IPv6 address, and not a name.
bool IsAddress(const Endpoint& e);
/// Returns true for 0.0.0.0 and ::, which stand for every address of the machine.
bool IsWildcard(const Endpoint& e);

}  // namespace deltawire
