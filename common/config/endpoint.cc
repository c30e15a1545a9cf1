#include "common/config/endpoint.h"

#include <arpa/inet.h>
#include <strings.h>

#include <algorithm>
#include <cctype>
#include <charconv>

namespace deltawire {
namespace {

constexpr size_t kMaxHostBytes = 253;

bool IsHostChar(unsigned char c) { return std::isalnum(c) || c == '.' || c == '_' || c == '-'; }

/// Returns true for a host name, or an IPv4 or IPv6 address without brackets.
bool IsHost(const std::string& host) {
  in6_addr v6;
  if (host.find(':') != std::string::npos) {
    return ::inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &v6) == 1;
  }
  return !host.empty() && host.size() <= kMaxHostBytes &&
         std::all_of(host.begin(), host.end(), IsHostChar);
}

}  // namespace

StatusOr<Endpoint> ParseEndpoint(std::string_view text) {
  const auto bad = [&](std::string_view why) {
    return Errorf(StatusCode::kInvalidArgument, "\"{}\" is not HOST:PORT, [IPv6]:PORT or :PORT: {}",
                  text, why);
  };
  Endpoint endpoint;
  std::string_view port;
  if (text.starts_with('[')) {
    const size_t close = text.find("]:");
    if (close == std::string_view::npos) return bad("no \"]:\" after the address");
    endpoint.host = text.substr(1, close - 1);
    if (endpoint.host.find(':') == std::string::npos) return bad("no IPv6 address in the []");
    port = text.substr(close + 2);
  } else {
    const size_t colon = text.find(':');
    if (colon == std::string_view::npos) return bad("the port is missing");
    if (text.find(':', colon + 1) != std::string_view::npos) {
      return bad("an IPv6 address needs [] around it");
    }
    if (colon > 0) endpoint.host = text.substr(0, colon);
    port = text.substr(colon + 1);
  }
  if (!IsHost(endpoint.host)) return bad("that is no host name or address");
  const char* const end = port.data() + port.size();
  const auto [stop, error] = std::from_chars(port.data(), end, endpoint.port);
  if (error != std::errc() || stop != end) return bad("the port is no number from 0 to 65535");
  return endpoint;
}

std::string ToString(const Endpoint& e) {
  const bool v6 = e.host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", e.host, v6 ? "]" : "", e.port);
}

bool IsAddress(const Endpoint& e) {
  in6_addr any;
  return ::inet_pton(AF_INET, e.host.c_str(), &any) == 1 ||
         ::inet_pton(AF_INET6, e.host.c_str(), &any) == 1;
}

bool IsWildcard(const Endpoint& e) { return e.host == "0.0.0.0" || e.host == "::"; }

bool IsLoopback(const Endpoint& e) {
  in_addr v4;
  if (::inet_pton(AF_INET, e.host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6;
  if (::inet_pton(AF_INET6, e.host.c_str(), &v6) == 1) {
    if (IN6_IS_ADDR_V4MAPPED(&v6)) return v6.s6_addr[12] == 127;
    return IN6_IS_ADDR_LOOPBACK(&v6);
  }
  return ::strcasecmp(e.host.c_str(), "localhost") == 0;
}

}  // namespace deltawire
