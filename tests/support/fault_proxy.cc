#include "tests/support/fault_proxy.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <spdlog/fmt/fmt.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>

#include "tests/support/tcp.h"

namespace deltawire::testing {
namespace {

constexpr size_t kFaultPiece = 64 << 10;
constexpr std::array kKinds = {"flip", "zero", "swap", "drop", "twice", "stall", "cut"};

bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

}  // namespace

Fault Fault::Draw(std::mt19937_64& random, uint64_t span) {
  Fault f;
  f.kind = static_cast<Kind>(random() % kKinds.size());
  f.towards_receiver = random() % 4 != 0;
  const auto magnitude = random() % static_cast<uint64_t>(std::bit_width(span));
  f.offset = std::min(span, random() % (uint64_t{2} << magnitude));
  f.bytes = static_cast<uint32_t>(1 + random() % 64);
  return f;
}

std::string ToString(const Fault& f) {
  return fmt::format("{} of {} bytes at {} towards the {}", kKinds[static_cast<size_t>(f.kind)],
                     f.bytes, f.offset, f.towards_receiver ? "receiver" : "sender");
}

FaultProxy::FaultProxy(uint16_t port) : port_(port) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  Listen(listener_, kHost, port);
  accepting_ = std::thread([this] { Accept(); });
}

FaultProxy::~FaultProxy() {
  stopping_ = true;
  shutdown(listener_, SHUT_RDWR);
  accepting_.join();
  Reap(true);
  close(listener_);
}

void FaultProxy::Arm(const Fault& fault) {
  std::lock_guard lock(mu_);
  fault_ = fault;
  passed_ = 0;
  happened_ = false;
}

bool FaultProxy::Disarm() {
  std::lock_guard lock(mu_);
  fault_.reset();
  return happened_;
}

void FaultProxy::Accept() {
  while (!stopping_) {
    const int receiver = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (receiver < 0) return;
    Reap(false);
    const int sender = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!ConnectHere(sender, port_)) {
      close(receiver);
      close(sender);
      continue;
    }
    const int yes = 1;
    for (const int fd : {receiver, sender}) {
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    }
    Connection& c = connections_.emplace_back();
    c.receiver = receiver;
    c.sender = sender;
    c.thread = std::thread([this, &c] { Pump(c); });
  }
}

void FaultProxy::Reap(bool all) {
  for (auto c = connections_.begin(); c != connections_.end();) {
    if (all) {
      shutdown(c->receiver, SHUT_RDWR);
      shutdown(c->sender, SHUT_RDWR);
    }
    if (!all && !c->done) {
      ++c;
      continue;
    }
    c->thread.join();
    close(c->receiver);
    close(c->sender);
    c = connections_.erase(c);
  }
}

void FaultProxy::Pump(Connection& c) {
  std::string bytes;
  pollfd fds[2] = {{c.receiver, POLLIN, 0}, {c.sender, POLLIN, 0}};
  bool open = true;
  while (open && !stopping_ && poll(fds, 2, -1) >= 0) {
    for (int from = 0; from < 2 && open; ++from) {
      if (fds[from].revents == 0) continue;
      bytes.resize(kFaultPiece);
      const ssize_t n = recv(fds[from].fd, bytes.data(), bytes.size(), 0);
      open = n > 0;
      if (!open) break;
      bytes.resize(static_cast<size_t>(n));
      open = Pass(c, from == 1, bytes) && WriteAll(fds[1 - from].fd, bytes);
    }
  }
  shutdown(c.receiver, SHUT_RDWR);
  shutdown(c.sender, SHUT_RDWR);
  c.done = true;
}

bool FaultProxy::Pass(Connection& c, bool towards_receiver, std::string& bytes) {
  std::lock_guard lock(mu_);
  if (c.mute[towards_receiver ? 1 : 0]) bytes.clear();
  if (!fault_ || fault_->towards_receiver != towards_receiver || bytes.empty()) return true;
  const uint64_t begin = passed_;
  passed_ += bytes.size();
  if (fault_->offset >= passed_) return true;
  const Fault f = *fault_;
  fault_.reset();
  happened_ = true;
  const auto at = static_cast<size_t>(f.offset - begin);
  const size_t n = std::min<size_t>(f.bytes, bytes.size() - at);
  switch (f.kind) {
    case Fault::Kind::kFlip:
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << (f.bytes % 8)));
      return true;
    case Fault::Kind::kZero:
      std::fill_n(bytes.begin() + static_cast<ptrdiff_t>(at), n, '\0');
      return true;
    case Fault::Kind::kSwap:
      std::rotate(bytes.begin() + static_cast<ptrdiff_t>(at),
                  bytes.begin() + static_cast<ptrdiff_t>(at + n / 2),
                  bytes.begin() + static_cast<ptrdiff_t>(at + n));
      return true;
    case Fault::Kind::kDrop:
      bytes.erase(at, n);
      return true;
    case Fault::Kind::kTwice:
      bytes.insert(at, bytes.substr(at, n));
      return true;
    case Fault::Kind::kStall:
      bytes.resize(at);
      c.mute[towards_receiver ? 1 : 0] = true;
      return true;
    case Fault::Kind::kCut:
      bytes.resize(at);
      return false;
  }
  return true;
}

}  // namespace deltawire::testing
