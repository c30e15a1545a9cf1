// A host and port as options name them. A plain value; pure functions.
// Errors: kInvalidArgument says what is wrong with the text.
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
/// "host:port", "[v6]:port" or ":port" (loopback). Port 0 lets the kernel choose.
StatusOr<Endpoint> ParseEndpoint(std::string_view text);
std::string ToString(const Endpoint& e);
/// True for 127.0.0.0/8, ::1 and "localhost".
bool IsLoopback(const Endpoint& e);
/// True if the host is an IPv4 or IPv6 address, and not a name.
bool IsAddress(const Endpoint& e);
/// True for 0.0.0.0 and ::, which stand for every address of the machine.
bool IsWildcard(const Endpoint& e);

}  // namespace deltawire
