#include "proto/control_connections.h"

// glibc's own tcp_info ends before the field for received bytes.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "common/base/human.h"
#include "common/base/log.h"

namespace deltawire {
namespace {

using std::chrono::milliseconds;

/// The pause between two looks at a connection. A peer can exceed its limit by the bytes that it
/// sends in one pause.
constexpr milliseconds kLookEvery{20};
/// A sweep looks at every connection, so sweeps are spaced.
constexpr milliseconds kSweepEvery{100};
/// The bytes of a connection's handshakes, and of HTTP/2 and TLS around a message.
constexpr uint64_t kAllowance = uint64_t{16} << 10;
constexpr uint64_t kPerMessage = 1024;
/// Allowances for bytes outside of messages: those of pings and refused calls in a second, and a
/// byte of window updates for every kSentPerByte bytes of a long answer.
constexpr uint64_t kPerSecond = 256;
constexpr uint64_t kSentPerByte = 128;
constexpr milliseconds kLookForLate{1000};
constexpr uint64_t kWake = 0;  // no connection has this number

/// Returns 0 if the descriptor is not a socket of this process.
uint64_t CookieOf(int fd) {
  uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  return getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0 ? cookie : 0;
}

tcp_info InfoOf(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size);
  return info;
}

/// Returns "ipv4:10.0.0.2:40512" without the port.
std::string AddressOf(const std::string& peer) { return peer.substr(0, peer.rfind(':')); }

/// Returns the same for people: "10.0.0.2".
std::string_view Plain(std::string_view address) {
  return address.substr(std::min(address.size(), address.find(':') + 1));
}

}  // namespace

std::string PeerOf(int socket) {
  sockaddr_storage at{};
  socklen_t size = sizeof at;
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&at), &size) != 0) return "";
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (at.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(at);
    inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
    return fmt::format("ipv4:{}:{}", text.data(), ntohs(v4.sin_port));
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(at);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text.data(), text.size());
    return fmt::format("ipv4:{}:{}", text.data(), ntohs(v6.sin6_port));
  }
  inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
  const std::string scope = v6.sin6_scope_id == 0 ? "" : fmt::format("%{}", v6.sin6_scope_id);
  return fmt::format("ipv6:[{}{}]:{}", text.data(), scope, ntohs(v6.sin6_port));
}

std::string Unescaped(std::string_view peer) {
  std::string out;
  while (!peer.empty()) {
    uint8_t byte = 0;
    const bool escaped =
        peer.size() >= 3 && peer[0] == '%' &&
        std::from_chars(peer.data() + 1, peer.data() + 3, byte, 16).ptr == peer.data() + 3;
    out += escaped ? static_cast<char>(byte) : peer[0];
    peer.remove_prefix(escaped ? 3 : 1);
  }
  return out;
}

StatusOr<std::shared_ptr<ControlConnections>> ControlConnections::Start(
    std::string name, const ControlLimits& limits) {
  std::shared_ptr<ControlConnections> made(new ControlConnections(std::move(name), limits));
  if (made->epoll_.get() < 0 || made->wake_.get() < 0) return ErrnoError("epoll for control");
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kWake}};
  if (epoll_ctl(made->epoll_.get(), EPOLL_CTL_ADD, made->wake_.get(), &event) != 0) {
    return ErrnoError("epoll for control");
  }
  made->thread_ = Thread([raw = made.get()] { raw->Run(); });
  return made;
}

ControlConnections::ControlConnections(std::string name, const ControlLimits& limits)
    : name_(std::move(name)),
      limits_(limits),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

ControlConnections::~ControlConnections() {
  if (!thread_.joinable()) return;
  stopping_ = true;
  const uint64_t one = 1;
  while (write(wake_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
  thread_.join();
}

bool ControlConnections::HasRoom(const std::string& address) const {
  const auto same = of_address_.find(address);
  return connections_.size() < limits_.connections &&
         (same == of_address_.end() || same->second.connections < limits_.connections_per_address);
}

bool ControlConnections::Take(int fd) {
  Connection taken{.fd = fd, .cookie = CookieOf(fd), .peer = PeerOf(fd)};
  // A peer that has gone needs no place; gRPC detects it by itself.
  if (taken.cookie == 0 || taken.peer.empty()) return true;
  taken.address = AddressOf(taken.peer);
  taken.settled = kAllowance;
  taken.looked = SteadyClock::now();
  size_t same = 0, all = 0;
  bool twin = false;
  {
    std::lock_guard lock(mu_);
    if (const auto before = by_fd_.find(fd); before != by_fd_.end()) {
      Forget(connections_.find(before->second));
    }
    const auto before = by_peer_.find(taken.peer);
    if (before != by_peer_.end()) {
      // The peer may connect from one port to two addresses of this host. gRPC gives both
      // connections one name, so their whole messages could not be told apart.
      const auto entry = connections_.find(before->second);
      const Connection& first = entry->second;
      twin = CookieOf(first.fd) == first.cookie && PeerOf(first.fd) == first.peer;
      if (!twin) Forget(entry);
    }
    if (!twin && !HasRoom(taken.address) && taken.looked - swept_ >= kSweepEvery) Sweep();
    if (!twin && HasRoom(taken.address)) {
      const uint64_t number = next_++;
      by_fd_[fd] = by_peer_[taken.peer] = number;
      ++of_address_[taken.address].connections;
      Arm(connections_.emplace(number, std::move(taken)).first);
      return true;
    }
    const auto its = of_address_.find(taken.address);
    same = its == of_address_.end() ? 0 : its->second.connections;
    all = connections_.size();
  }
  ++refused_;
  if (!log_.Allow(taken.address)) return false;
  if (twin) {
    LogWarn("{}: a connection was refused: {} has one from the same port to another address here",
            name_, Plain(taken.peer));
    return false;
  }
  const bool its = same >= limits_.connections_per_address;
  LogWarn("{}: a connection was refused: {} are open{}, which is the most; end some of them first",
          name_, its ? same : all, its ? fmt::format(" from {}", Plain(taken.address)) : "");
  return false;
}

size_t ControlConnections::count() const {
  std::lock_guard lock(mu_);
  return connections_.size();
}

void ControlConnections::Whole(const std::string& peer, size_t bytes) {
  std::lock_guard lock(mu_);
  const auto known = by_peer_.find(peer);
  if (known == by_peer_.end()) return;
  Connection& connection = connections_.find(known->second)->second;
  const uint64_t before = connection.on_the_way();
  connection.settled += bytes + kPerMessage;
  Recount(connection, before);
}

void ControlConnections::Recount(Connection& connection, uint64_t before) {
  const uint64_t now = connection.on_the_way();
  of_address_[connection.address].bytes += now - before;  // modulo 2^64
  bytes_ += now - before;
  constexpr SteadyClock::time_point kNever;
  const bool late = now > ControlLimits::kSmall;
  if (late == (connection.late_since != kNever)) return;
  connection.late_since = late ? SteadyClock::now() : kNever;
  late ? ++late_ : --late_;
}

void ControlConnections::Arm(Entry entry) {
  // epoll discards an event if nothing is ready at hand-over, and gRPC may have read everything by
  // then. So ask for EPOLLOUT, too, which is nearly always ready. Edge-triggered, it causes no
  // events of its own.
  epoll_event event{.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                    .data = {.u64 = entry->first}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, entry->second.fd, &event);
}

void ControlConnections::Forget(Entry entry) {
  const Connection& gone = entry->second;
  const auto address = of_address_.find(gone.address);
  address->second.bytes -= gone.on_the_way();
  bytes_ -= gone.on_the_way();
  if (gone.late_since != SteadyClock::time_point()) --late_;
  if (--address->second.connections == 0) of_address_.erase(address);
  by_peer_.erase(gone.peer);
  by_fd_.erase(gone.fd);
  connections_.erase(entry);
}

void ControlConnections::Sweep() {
  for (auto at = connections_.begin(); at != connections_.end();) {
    const auto entry = at++;
    if (CookieOf(entry->second.fd) != entry->second.cookie) Forget(entry);
  }
  swept_ = SteadyClock::now();
}

bool ControlConnections::Look(Entry entry) {
  Connection& connection = entry->second;
  // gRPC owns the descriptor and may have closed it. Another socket may have its number now.
  if (CookieOf(connection.fd) != connection.cookie) {
    Forget(entry);
    return false;
  }
  const auto now = SteadyClock::now();
  const std::chrono::duration<double> since = now - std::exchange(connection.looked, now);
  const uint64_t before = connection.on_the_way();
  const tcp_info info = InfoOf(connection.fd);
  connection.received = info.tcpi_bytes_received;
  const uint64_t sent =
      info.tcpi_bytes_acked - std::exchange(connection.sent, info.tcpi_bytes_acked);
  const auto more = static_cast<uint64_t>(since.count() * kPerSecond) + sent / kSentPerByte;
  connection.settled = std::min(connection.settled + more, connection.received + kAllowance);
  Recount(connection, before);
  return true;
}

void ControlConnections::Run() {
  std::array<epoll_event, 1024> events{};
  auto next_late = SteadyClock::now();
  size_t late = 0;
  while (!stopping_) {
    const int wait = late == 0 ? -1 : static_cast<int>(kLookForLate.count());
    const auto taken = [&](size_t before, int limit_ms) {
      const int n = epoll_wait(epoll_.get(), events.data() + before,
                               static_cast<int>(events.size() - before), limit_ms);
      return before + static_cast<size_t>(std::max(n, 0));
    };
    size_t n = taken(0, wait);
    // Wait for a moment, so that one look covers all bytes that arrive in it.
    pollfd wake{wake_.get(), POLLIN, 0};
    poll(&wake, 1, static_cast<int>(kLookEvery.count()));
    if (n < events.size()) n = taken(n, 0);
    for (size_t i = 0; i < n; ++i) {
      std::lock_guard lock(mu_);
      const auto entry = connections_.find(events[i].data.u64);
      if (entry == connections_.end() || !Look(entry)) continue;
      CutWhatIsTooMuch(entry);
    }
    std::lock_guard lock(mu_);
    late = late_;
    if (late == 0 || SteadyClock::now() < next_late) continue;
    CutWhatIsLate();
    next_late = SteadyClock::now() + kLookForLate;
  }
}

void ControlConnections::CutWhatIsTooMuch(Entry entry) {
  const auto too_much = [](std::string_view where, uint64_t bytes, uint64_t most) {
    return fmt::format(
        "{} of requests that are not whole have come {}, and {} is the most; "
        "send smaller requests, or fewer at a time",
        HumanBytes(bytes), where, HumanBytes(most));
  };
  const std::string address = entry->second.address;
  if (const uint64_t sent = entry->second.on_the_way(); sent > limits_.bytes_per_connection) {
    Cut(entry, too_much("on it", sent, limits_.bytes_per_connection));
  }
  for (auto of = of_address_.find(address);
       of != of_address_.end() && of->second.bytes > limits_.bytes_per_address;
       of = of_address_.find(address)) {
    Cut(MostOf(address),
        too_much("from this address", of->second.bytes, limits_.bytes_per_address));
  }
  while (bytes_ > limits_.bytes) {
    const auto most = std::max_element(
        of_address_.begin(), of_address_.end(),
        [](const auto& a, const auto& b) { return a.second.bytes < b.second.bytes; });
    Cut(MostOf(most->first), too_much("from all", bytes_, limits_.bytes));
  }
}

void ControlConnections::CutWhatIsLate() {
  constexpr SteadyClock::time_point kNever;
  const auto now = SteadyClock::now();
  for (auto at = connections_.begin(); at != connections_.end();) {
    const auto entry = at++;
    const auto since = entry->second.late_since;
    if (since == kNever || now - since < limits_.until_whole) continue;
    Cut(entry, fmt::format("a request of more than {} has not come whole within {} s; send it anew",
                           HumanBytes(ControlLimits::kSmall),
                           std::chrono::duration<double>(limits_.until_whole).count()));
  }
}

ControlConnections::Entry ControlConnections::MostOf(const std::string& address) {
  auto most = connections_.end();
  for (auto at = connections_.begin(); at != connections_.end(); ++at) {
    if (at->second.address != address) continue;
    if (most == connections_.end() || at->second.on_the_way() > most->second.on_the_way()) {
      most = at;
    }
  }
  return most;
}

void ControlConnections::Cut(Entry entry, const std::string& why) {
  const Connection& connection = entry->second;
  // The copy prevents the socket's close and the reuse of its number in the meantime.
  const UniqueFd socket(fcntl(connection.fd, F_DUPFD_CLOEXEC, 0));
  if (CookieOf(socket.get()) == connection.cookie) {
    shutdown(socket.get(), SHUT_RDWR);
    ++refused_;
    if (log_.Allow(connection.address)) {
      LogWarn("{}: a connection of {} was cut: {}", name_, Plain(connection.address), why);
    }
  }
  Forget(entry);
}

}  // namespace deltawire
