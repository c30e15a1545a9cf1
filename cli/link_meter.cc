#include "cli/link_meter.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cerrno>
#include <list>
#include <mutex>
#include <optional>
#include <thread>

#include "common/base/human.h"
#include "common/base/sync.h"
#include "proto/client/tcp.h"

namespace deltawire::cli {
namespace {

constexpr size_t kBlock = 256 << 10;
constexpr size_t kAskBytes = kLinkMagic.size() + 1 + 4;
using AskBytes = std::array<char, kAskBytes>;
using Milliseconds = std::chrono::milliseconds;

struct Ask {
  LinkAsk kind = LinkAsk::kEcho;
  Milliseconds time{0};
};

AskBytes Encode(const Ask& ask) {
  AskBytes out{};
  std::ranges::copy(kLinkMagic, out.begin());
  out[kLinkMagic.size()] = static_cast<char>(ask.kind);
  const auto ms = static_cast<uint32_t>(ask.time.count());
  for (size_t i = 0; i < 4; ++i) {
    out[kLinkMagic.size() + 1 + i] = static_cast<char>(ms >> (8 * i) & 0xff);
  }
  return out;
}

std::optional<Ask> Decode(const AskBytes& in) {
  if (!std::string_view(in.data(), in.size()).starts_with(kLinkMagic)) return std::nullopt;
  uint32_t ms = 0;
  for (size_t i = 0; i < 4; ++i) {
    ms |= uint32_t{static_cast<uint8_t>(in[kLinkMagic.size() + 1 + i])} << (8 * i);
  }
  const Ask ask{static_cast<LinkAsk>(in[kLinkMagic.size()]), Milliseconds(ms)};
  const bool send = ask.kind == LinkAsk::kSend && ask.time <= kLongestSend;
  if (ask.kind != LinkAsk::kEcho && !send) return std::nullopt;
  return ask;
}

bool SendAll(int fd, const char* data, size_t size) {
  return ::send(fd, data, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

void SendAtOnce(int fd) {
  const int yes = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

// Returns the error for a peer that does not answer as a LinkListener does.
Status Failed(const std::string& to, std::string_view what) {
  const int error = errno;
  return ErrnoError(
      fmt::format("{}: {} (is `deltawire bench-link --listen` running there?)", to, what), error);
}

}  // namespace

// Listening ---------------------------------------------------------------------------------------

struct LinkListener::Impl {
  struct Connection {
    UniqueFd fd;
    std::atomic<bool> done{false};
    std::thread thread;
  };

  void Accept() {
    while (true) {
      UniqueFd fd(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (stopping) return;
      if (fd.get() < 0) {
        // The process may be out of descriptors. The next connection or the destructor wakes poll.
        pollfd wait{listening.get(), POLLIN, 0};
        ::poll(&wait, 1, 100);
        continue;
      }
      Reap(false);
      std::lock_guard lock(mu);
      if (connections.size() >= limits.connections) {
        ++refused;
        continue;
      }
      Connection& c = connections.emplace_back();
      c.fd = std::move(fd);
      c.thread = std::thread([this, &c] {
        Serve(c.fd.get());
        ::shutdown(c.fd.get(), SHUT_RDWR);
        c.done = true;
      });
    }
  }

  void Serve(int fd) {
    SetTimeout(fd, limits.first_word);
    AskBytes in;
    const bool whole = ::recv(fd, in.data(), in.size(), MSG_WAITALL) == ssize_t{kAskBytes};
    const auto ask = whole ? Decode(in) : std::nullopt;
    if (!ask) {
      ++refused;
      return;
    }
    if (ask->kind == LinkAsk::kEcho) {
      SendAtOnce(fd);
      char byte = 0;
      while (::recv(fd, &byte, 1, 0) == 1 && SendAll(fd, &byte, 1)) continue;
      return;
    }
    const std::vector<char> zeros(kBlock);
    const auto end = SteadyClock::now() + ask->time;
    while (!stopping && SteadyClock::now() < end) {
      const ssize_t n = ::send(fd, zeros.data(), zeros.size(), MSG_NOSIGNAL);
      if (n <= 0) return;
      bytes_sent += static_cast<uint64_t>(n);
    }
  }

  // Joins the threads of connections that have ended, or ends all.
  void Reap(bool all) {
    std::list<Connection> ended;
    {
      std::lock_guard lock(mu);
      for (auto it = connections.begin(); it != connections.end();) {
        const auto next = std::next(it);
        if (all || it->done) ended.splice(ended.end(), connections, it);
        it = next;
      }
    }
    for (Connection& c : ended) {
      if (all) ::shutdown(c.fd.get(), SHUT_RDWR);
      c.thread.join();
    }
  }

  Limits limits;
  UniqueFd listening;
  std::atomic<bool> stopping{false};
  std::atomic<uint64_t> bytes_sent{0}, refused{0};
  std::mutex mu;
  std::list<Connection> connections;
  std::thread accepting;
};

StatusOr<std::unique_ptr<LinkListener>> LinkListener::Listen(const std::string& address,
                                                             Limits limits) {
  auto impl = std::make_unique<Impl>();
  impl->limits = limits;
  DW_ASSIGN_OR_RETURN(impl->listening, ListenTcp(address));
  impl->accepting = std::thread([impl = impl.get()] { impl->Accept(); });
  return std::unique_ptr<LinkListener>(new LinkListener(std::move(impl)));
}

LinkListener::LinkListener(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

LinkListener::~LinkListener() {
  impl_->stopping = true;
  // Unlike close, shutdown wakes the thread that accepts.
  ::shutdown(impl_->listening.get(), SHUT_RDWR);
  impl_->accepting.join();
  impl_->Reap(true);
}

uint16_t LinkListener::port() const {
  sockaddr_storage at{};
  socklen_t size = sizeof at;
  ::getsockname(impl_->listening.get(), reinterpret_cast<sockaddr*>(&at), &size);
  return ntohs(at.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(at).sin6_port
                                        : reinterpret_cast<const sockaddr_in&>(at).sin_port);
}
uint64_t LinkListener::bytes_sent() const { return impl_->bytes_sent; }
uint64_t LinkListener::refused() const { return impl_->refused; }

// Measuring ---------------------------------------------------------------------------------------

StatusOr<double> MeasureRoundTrip(const std::string& to, int times, Milliseconds timeout) {
  DW_ASSIGN_OR_RETURN(const UniqueFd fd, ConnectTcp(to, timeout));
  SetTimeout(fd.get(), timeout);
  SendAtOnce(fd.get());
  const AskBytes ask = Encode({LinkAsk::kEcho, {}});
  if (!SendAll(fd.get(), ask.data(), ask.size())) return Failed(to, "asking for an echo");
  double best = std::chrono::duration<double>(timeout).count();
  for (int i = 0; i < times; ++i) {
    char byte = 0;
    const auto start = SteadyClock::now();
    errno = ECONNRESET;  // at the stream's end recv sets no error
    if (!SendAll(fd.get(), &byte, 1) || ::recv(fd.get(), &byte, 1, 0) != 1) {
      return Failed(to, "no echo");
    }
    best = std::min(best, SecondsSince(start));
  }
  return best;
}

namespace {

/// Measures the bytes per second of one of several concurrent streams.
StatusOr<double> Receive(const std::string& to, Milliseconds whole, Milliseconds timeout,
                         std::barrier<>& together) {
  auto fd = ConnectTcp(to, timeout);
  // All streams start together. A thread that could not connect arrives here too, because the
  // others wait for it.
  together.arrive_and_wait();
  if (!fd.ok()) return fd.status();
  SetTimeout(fd->get(), timeout);
  const AskBytes ask = Encode({LinkAsk::kSend, whole});
  if (!SendAll(fd->get(), ask.data(), ask.size())) return Failed(to, "asking for bytes");
  std::vector<char> block(kBlock);
  double early = 0, counted = 0;
  const auto begin = SteadyClock::now(), from = begin + whole / 5, until = begin + whole;
  auto now = begin;
  while (now < until) {
    const ssize_t n = ::recv(fd->get(), block.data(), block.size(), 0);
    if (n < 0) return Failed(to, "receiving");
    now = SteadyClock::now();
    if (n == 0) break;  // the peer has sent for long enough
    (now < from ? early : counted) += static_cast<double>(n);
  }
  // If this thread or the sending one is kept off its core, bytes may arrive late or stop early. So
  // divide the bytes by the time that they really took. If nothing arrived after the warm-up, only
  // the warm-up's bytes are known.
  const auto seconds = [&](SteadyClock::time_point first) {
    return std::chrono::duration<double>(std::max(now, until) - first).count();
  };
  return counted > 0 ? counted / seconds(from) : early / seconds(begin);
}

}  // namespace

StatusOr<LinkRate> MeasureRate(const std::string& to, size_t streams, double seconds,
                               Milliseconds timeout) {
  const auto whole =
      std::chrono::duration_cast<Milliseconds>(std::chrono::duration<double>(seconds));
  std::barrier together(static_cast<std::ptrdiff_t>(streams));
  std::vector<StatusOr<double>> rates(streams, 0.0);
  std::vector<std::thread> threads;
  for (StatusOr<double>& rate : rates) {
    threads.emplace_back([&] { rate = Receive(to, whole, timeout, together); });
  }
  for (std::thread& thread : threads) thread.join();
  LinkRate sum{streams, 0};
  for (const StatusOr<double>& rate : rates) {
    if (!rate.ok()) return rate.status();
    sum.bytes_per_s += *rate;
  }
  return sum;
}

const LinkRate& FewestStreams(std::span<const LinkRate> rates) {
  const double best = std::ranges::max_element(rates, {}, &LinkRate::bytes_per_s)->bytes_per_s;
  const LinkRate* fewest = nullptr;
  for (const LinkRate& r : rates) {
    if (r.bytes_per_s < 0.95 * best) continue;
    if (fewest == nullptr || r.streams < fewest->streams) fewest = &r;
  }
  return *fewest;
}

}  // namespace deltawire::cli
