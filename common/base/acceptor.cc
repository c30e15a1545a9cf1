#include "common/base/acceptor.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "common/base/log.h"

namespace deltawire {
namespace {

// No event announces a free descriptor, so a shortage is polled at this interval.
constexpr int kRetryMillis = 100;
constexpr int kBacklog = 4096;  // the kernel cuts it to net.core.somaxconn

/// Whether an error concerns one connection that is already gone. Other errors concern the listener
/// or this process.
bool IsOfConnection(int err) { return err == EINTR || err == ECONNABORTED || err == EPROTO; }

StatusOr<UniqueFd> BindAndListen(const addrinfo& at, const std::string& what) {
  UniqueFd fd(socket(at.ai_family, at.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at.ai_protocol));
  if (fd.get() < 0) return ErrnoError(what);
  const int yes = 1;
  if (at.ai_family != AF_UNIX) {
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);  // connections inherit it
  }
  if (bind(fd.get(), at.ai_addr, at.ai_addrlen) != 0 || listen(fd.get(), kBacklog) != 0) {
    const int err = errno;
    if (err == EADDRNOTAVAIL) {
      return Errorf(StatusCode::kInvalidArgument, "{}: this machine has no such address", what);
    }
    if (err == EADDRINUSE) {
      return Errorf(StatusCode::kAlreadyExists,
                    "{}: address already in use; stop the process that has it (`ss -ltnp` names "
                    "it), or choose another address",
                    what);
    }
    return ErrnoError(what, err);
  }
  return fd;
}

}  // namespace

StatusOr<UniqueFd> ListenTcp(const std::string& host, uint16_t port) {
  const std::string what = fmt::format("listening on {}:{}", host, port);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  // A resolver may put ::1 first, but others dial the IPv4 address.
  const std::string name = host == "localhost" ? "127.0.0.1" : host;
  const int err = getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (err != 0) {
    return Errorf(StatusCode::kInvalidArgument, "{}: \"{}\" is not an address ({})", what, host,
                  gai_strerror(err));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  StatusOr<UniqueFd> listening = absl::InternalError(what);
  for (const addrinfo* at = found; at != nullptr && !listening.ok(); at = at->ai_next) {
    listening = BindAndListen(*at, what);
  }
  return listening;
}

StatusOr<UniqueFd> ListenUnix(const std::string& path) {
  sockaddr_un address{};
  if (path.size() >= sizeof address.sun_path) {
    return Errorf(StatusCode::kInvalidArgument,
                  "socket path {} is longer than {} bytes; choose a shorter one", path,
                  sizeof address.sun_path - 1);
  }
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, path.size());
  addrinfo at{};
  at.ai_family = AF_UNIX;
  at.ai_socktype = SOCK_STREAM;
  at.ai_addr = reinterpret_cast<sockaddr*>(&address);
  at.ai_addrlen = sizeof address;
  // Whoever can open the socket file can give orders, so only its owner may.
  const mode_t old_mask = umask(0177);
  auto listening = BindAndListen(at, "listening on " + path);
  umask(old_mask);
  return listening;
}

uint16_t PortOf(const UniqueFd& listener) {
  sockaddr_storage at{};
  socklen_t size = sizeof at;
  if (getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &size) != 0) return 0;
  const uint16_t port = at.ss_family == AF_INET6
                            ? reinterpret_cast<const sockaddr_in6&>(at).sin6_port
                            : reinterpret_cast<const sockaddr_in&>(at).sin_port;
  return ntohs(port);
}

Acceptor::Acceptor(UniqueFd listener, std::string name, size_t reserve,
                   std::function<void(int fd)> on_connection)
    : listener_(std::move(listener)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      name_(std::move(name)),
      reserve_(reserve),
      on_connection_(std::move(on_connection)),
      thread_([this] { Run(); }) {}

Acceptor::~Acceptor() { Stop(); }

void Acceptor::Stop() {
  if (!thread_.joinable()) return;
  stopping_ = true;
  const uint64_t one = 1;
  while (write(wake_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
  thread_.join();
  listener_.Reset();
}

void Acceptor::Run() {
  while (!stopping_) {
    // During a shortage the listener stays readable, so polling it too would spin.
    pollfd fds[2] = {{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    const bool wait_only = std::exchange(short_of_descriptors_, false);
    const bool timed = wait_only || wake_.get() < 0;
    poll(fds, wait_only ? 1 : 2, timed ? kRetryMillis : -1);
    if (!stopping_) AcceptAll();
  }
}

void Acceptor::AcceptAll() {
  while (true) {
    const int fd = accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      if (MayKeep(fd)) {
        said_ = false;
        on_connection_(fd);
      } else {
        close(fd);
        Say("nearly out of descriptors, so new connections are refused; raise the limit (ulimit "
            "-n)");
      }
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return;
    if (IsOfConnection(errno)) continue;
    short_of_descriptors_ = true;
    return Say(std::strerror(errno));
  }
}

bool Acceptor::MayKeep(int fd) const {
  // The kernel gives out the lowest free number, so a high one says how many are taken.
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return true;
  const size_t reserve = std::min<size_t>(reserve_, limit.rlim_cur / 4);
  return static_cast<size_t>(fd) + reserve < limit.rlim_cur;
}

void Acceptor::Say(std::string_view what) {
  if (!std::exchange(said_, true)) LogWarn("{}: accept: {}", name_, what);
}

}  // namespace deltawire
