// IPv4 sockets for tests. Owner: none; free functions. Threads: any. Cost: system
// calls. Errors: std::runtime_error.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <stdexcept>

namespace deltawire::testing {

inline sockaddr_in Address(const char* host, uint16_t port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(port);
  inet_pton(AF_INET, host, &a.sin_addr);
  return a;
}

/// Connects a new socket to a port of this machine; false if that fails.
inline bool ConnectHere(int fd, uint16_t port) {
  const sockaddr_in to = Address("127.0.0.1", port);
  return connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0;
}

/// Binds the new socket `listener` and listens; throws if that fails. Returns the port, which the
/// kernel chooses if `port` is 0.
inline uint16_t Listen(int listener, const char* host, uint16_t port) {
  const int yes = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in at = Address(host, port);
  socklen_t size = sizeof at;
  if (bind(listener, reinterpret_cast<const sockaddr*>(&at), size) != 0 ||
      listen(listener, 64) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&at), &size) != 0) {
    throw std::runtime_error("the test cannot listen");
  }
  return ntohs(at.sin_port);
}

}  // namespace deltawire::testing
