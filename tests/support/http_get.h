// One GET of a daemon's HTTP port on loopback. Owner: none; free functions. Threads: any. Cost: a
// connection. Errors: "", or no descriptor.
#pragma once

#include <string>

#include "common/base/unique_fd.h"
#include "tests/support/tcp.h"

namespace deltawire::testing {

/// Asks, and leaves the answer to the caller.
inline UniqueFd SendGet(uint16_t port, const std::string& path) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM, 0));
  if (!ConnectHere(fd.get(), port)) return UniqueFd();
  const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
  send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL);
  return fd;
}

/// The whole answer, head and body.
inline std::string HttpGet(uint16_t port, const std::string& path) {
  const UniqueFd fd = SendGet(port, path);
  std::string all;
  char buffer[4096];
  for (ssize_t n; (n = recv(fd.get(), buffer, sizeof buffer, 0)) > 0;) {
    all.append(buffer, static_cast<size_t>(n));
  }
  return all;
}

}  // namespace deltawire::testing
