#include "proto/client/tcp.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <memory>

#include "common/config/endpoint.h"

namespace deltawire {
namespace {

using FoundAddresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

StatusOr<FoundAddresses> FindAddresses(const std::string& address, int flags) {
  DW_ASSIGN_OR_RETURN(const Endpoint at, ParseEndpoint(address));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(at.host.c_str(), std::to_string(at.port).c_str(), &hints, &found);
  if (error != 0) {
    return Errorf(StatusCode::kNotFound, "no address is known for \"{}\" ({})", at.host,
                  ::gai_strerror(error));
  }
  return FoundAddresses(found, &::freeaddrinfo);
}

// Returns 0 or the error number.
int ConnectWithin(int fd, const addrinfo& to, std::chrono::milliseconds timeout) {
  if (::connect(fd, to.ai_addr, to.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd wait{fd, POLLOUT, 0};
  if (::poll(&wait, 1, static_cast<int>(timeout.count())) <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

}  // namespace

StatusOr<UniqueFd> ConnectTcp(const std::string& address, std::chrono::milliseconds timeout) {
  DW_ASSIGN_OR_RETURN(const FoundAddresses found, FindAddresses(address, 0));
  int error = EADDRNOTAVAIL;
  for (const addrinfo* a = found.get(); a != nullptr; a = a->ai_next) {
    UniqueFd fd(::socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol));
    if (fd.get() < 0) continue;
    error = ConnectWithin(fd.get(), *a, timeout);
    if (error != 0) continue;
    ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK);
    return fd;
  }
  const StatusCode code = error == ECONNREFUSED ? StatusCode::kFailedPrecondition
                          : error == ETIMEDOUT  ? StatusCode::kDeadlineExceeded
                                                : StatusCode::kUnavailable;
  return Status(code, std::string(MessageOf(ErrnoError("connect to " + address, error))));
}

StatusOr<UniqueFd> ListenTcp(const std::string& address) {
  DW_ASSIGN_OR_RETURN(const FoundAddresses found, FindAddresses(address, AI_PASSIVE));
  UniqueFd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, found->ai_protocol));
  const int yes = 1;
  const bool ok = fd.get() >= 0 &&
                  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
                  ::bind(fd.get(), found->ai_addr, found->ai_addrlen) == 0 &&
                  ::listen(fd.get(), SOMAXCONN) == 0;
  if (!ok) return ErrnoError("listen at " + address);
  return fd;
}

void SetTimeout(int fd, std::chrono::milliseconds timeout) {
  const timeval t{.tv_sec = timeout.count() / 1000, .tv_usec = timeout.count() % 1000 * 1000};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
}

}  // namespace deltawire
