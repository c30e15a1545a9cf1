#include "common/net/tune_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "common/net/tcp_facts.h"

namespace deltawire::net {
namespace {

// For a connection within one host.
constexpr int kWindow = 768 << 10, kNotSent = 256 << 10;

template <typename T>
void Set(int socket, int level, int name, T value) {
  setsockopt(socket, level, name, &value, sizeof value);
}

/// The largest memory of a socket in bytes, as ChooseBuffer needs it.
struct Reach {
  uint64_t tuned = 0, asked = 0;
};

Reach ReadReach(const char* tuned_file, const char* asked_file) {
  Reach reach;
  uint64_t least = 0, usual = 0;
  std::ifstream(tuned_file) >> least >> usual >> reach.tuned;
  std::ifstream(asked_file) >> reach.asked;
  return reach;
}

const Reach& ReachOf(SocketEnd end) {
  static const Reach kSend =
      ReadReach("/proc/sys/net/ipv4/tcp_wmem", "/proc/sys/net/core/wmem_max");
  static const Reach kReceive =
      ReadReach("/proc/sys/net/ipv4/tcp_rmem", "/proc/sys/net/core/rmem_max");
  return end == SocketEnd::kSender ? kSend : kReceive;
}

bool SameAddress(const sockaddr_storage& a, const sockaddr_storage& b) {
  if (a.ss_family != b.ss_family) return false;
  if (a.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(a).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(b).sin_addr.s_addr;
  }
  return a.ss_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<const sockaddr_in6&>(a).sin6_addr,
                     &reinterpret_cast<const sockaddr_in6&>(b).sin6_addr, sizeof(in6_addr)) == 0;
}

bool WithinHost(int socket) {
  sockaddr_storage local{}, remote{};
  socklen_t local_size = sizeof local, remote_size = sizeof remote;
  return getsockname(socket, reinterpret_cast<sockaddr*>(&local), &local_size) == 0 &&
         getpeername(socket, reinterpret_cast<sockaddr*>(&remote), &remote_size) == 0 &&
         SameAddress(local, remote);
}

void Control(int socket, const SocketChoice& choice) {
  std::string name = choice.congestion_control;
  if (name == "system") return;
  if (name == "auto") {
    if (!IsFar({.round_trip_seconds = TcpFactsOf(socket).round_trip_seconds})) return;
    name = "bbr";
  }
  setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size()));
}

}  // namespace

void TuneSocket(int socket, const SocketChoice& choice) {
  Set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  Set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  Control(socket, choice);
  if (!WithinHost(socket)) return;
  Set(socket, IPPROTO_TCP, TCP_WINDOW_CLAMP, kWindow);
  Set(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kNotSent);
}

void FitSocket(int socket, SocketEnd end, const LinkFigures& link, uint16_t streams) {
  const Reach& reach = ReachOf(end);
  const uint64_t bytes = IsFar(link) ? ChooseBuffer(link, streams, reach.tuned, reach.asked) : 0;
  if (bytes != 0) {
    const int name = end == SocketEnd::kSender ? SO_SNDBUF : SO_RCVBUF;
    Set(socket, SOL_SOCKET, name, static_cast<int>(std::min<uint64_t>(bytes, INT32_MAX / 2)));
  }
  if (end == SocketEnd::kSender && !WithinHost(socket)) {
    Set(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, ChooseUnsent(link, streams));
  }
}

}  // namespace deltawire::net
