#include "bench/loopback/tcp_peer.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "bench/harness/machine.h"
#include "bench/harness/scratch_dir.h"
#include "common/base/human.h"

namespace deltawire::bench {
namespace {

constexpr size_t kMaxCall = size_t{4} << 20;  // bytes per send or recv
constexpr char kAll = 'a', kPairs = 'p', kDone = 'd';

struct Order {
  char command = 0;
  uint64_t size = 0;
};

bool SendFully(int fd, Bytes data) {
  while (!data.empty()) {
    const ssize_t n = send(fd, data.data(), std::min(data.size(), kMaxCall), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    data = data.subspan(static_cast<size_t>(n));
  }
  return true;
}

bool ReceiveFully(int fd, MutableBytes data) {
  while (!data.empty()) {
    const ssize_t n = recv(fd, data.data(), std::min(data.size(), kMaxCall), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    data = data.subspan(static_cast<size_t>(n));
  }
  return true;
}

template <typename T>
bool SendValue(int fd, const T& value) {
  return SendFully(fd, std::as_bytes(std::span(&value, 1)));
}
template <typename T>
bool ReceiveValue(int fd, T& value) {
  return ReceiveFully(fd, std::as_writable_bytes(std::span(&value, 1)));
}

// Part i of n of `all`, cut at multiples of a page.
template <typename Span>
Span Part(Span all, size_t i, size_t n) {
  constexpr size_t kPage = 4096;
  const size_t step = (all.size() / n + kPage - 1) / kPage * kPage;
  const size_t begin = std::min(i * step, all.size());
  const size_t end = i + 1 == n ? all.size() : std::min(begin + step, all.size());
  return all.subspan(begin, end - begin);
}

void Tune(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = port;
  return address;
}

// ---- the peer's process ---------------------------------------------------------------------

void ApplyPairs(Bytes pairs, MutableBytes to) {
  for (size_t i = 0; i + kPairBytes <= pairs.size(); i += kPairBytes) {
    const size_t index = LoadLe<uint32_t>(&pairs[i]);
    StoreLe<uint16_t>(&to[index * 2], LoadLe<uint16_t>(&pairs[i + 4]));
  }
}

bool ReceiveAll(const std::vector<int>& streams, MutableBytes to) {
  std::atomic<bool> ok{true};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < streams.size(); ++i) {
    threads.emplace_back([&, i] {
      if (!ReceiveFully(streams[i], Part(to, i, streams.size()))) ok = false;
    });
  }
  for (std::thread& t : threads) t.join();
  return ok;
}

std::vector<int> AcceptStreams(int control, size_t count) {
  std::vector<int> streams(count, -1);
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof address;
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener, static_cast<int>(count)) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      !SendValue(control, address.sin_port)) {
    return {};
  }
  for (size_t i = 0; i < count; ++i) {
    const int fd = accept(listener, nullptr, nullptr);
    uint32_t which = 0;
    if (fd < 0 || !ReceiveValue(fd, which) || which >= count) return {};
    Tune(fd);
    streams[which] = fd;
  }
  close(listener);
  return streams;
}

[[noreturn]] void RunPeer(int control, MutableBytes to, size_t stream_count) {
  // This process's page tables; the pages are there.
  madvise(to.data(), to.size(), MADV_POPULATE_WRITE);
  const std::vector<int> streams = AcceptStreams(control, stream_count);
  std::vector<std::byte> pairs;
  Order order;
  while (!streams.empty() && ReceiveValue(control, order)) {
    bool ok = false;
    if (order.command == kAll) {
      ok = ReceiveAll(streams, to);
    } else if (order.command == kPairs) {
      pairs.resize(order.size);
      ok = ReceiveFully(streams[0], pairs);
      if (ok) ApplyPairs(pairs, to);
    }
    if (!ok || !SendValue(control, kDone)) break;
  }
  _exit(0);
}

}  // namespace

StatusOr<std::unique_ptr<TcpPeer>> TcpPeer::Start(const std::filesystem::path& file, uint64_t bytes,
                                                  size_t streams) {
  auto peer = std::unique_ptr<TcpPeer>(new TcpPeer);
  DW_ASSIGN_OR_RETURN(peer->landed_, MapNewFile(file, bytes));
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return ErrnoError("socketpair");
  peer->control_ = UniqueFd(ends[0]);
  const UniqueFd theirs(ends[1]);
  const pid_t parent = getpid();
  peer->pid_ = fork();
  if (peer->pid_ < 0) return ErrnoError("fork");
  if (peer->pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(0);
    RunPeer(ends[1], peer->landed(), streams);
  }
  DW_RETURN_IF_ERROR(peer->Connect(streams));
  return peer;
}

Status TcpPeer::Connect(size_t streams) {
  in_port_t port = 0;
  if (!ReceiveValue(control_.get(), port)) {
    return absl::UnavailableError("the bare TCP peer cannot listen on 127.0.0.1");
  }
  for (uint32_t i = 0; i < streams; ++i) {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = Loopback(port);
    if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      return ErrnoError("connect to the bare TCP peer");
    }
    Tune(fd.get());
    if (!SendValue(fd.get(), i)) return ErrnoError("send to the bare TCP peer");
    streams_.push_back(std::move(fd));
  }
  return absl::OkStatus();
}

TcpPeer::~TcpPeer() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

StatusOr<double> TcpPeer::Command(char command, uint64_t size, const std::vector<Bytes>& parts) {
  const auto start = std::chrono::steady_clock::now();
  std::atomic<bool> ok = SendValue(control_.get(), Order{command, size});
  std::vector<std::thread> threads;
  for (size_t i = 0; i < parts.size(); ++i) {
    threads.emplace_back([&, i] {
      if (!SendFully(streams_[i].get(), parts[i])) ok = false;
    });
  }
  for (std::thread& t : threads) t.join();
  char answer = 0;
  if (!ok || !ReceiveValue(control_.get(), answer) || answer != kDone) {
    return absl::UnavailableError("the bare TCP peer is gone; was it killed for memory?");
  }
  return SecondsSince(start);
}

StatusOr<double> TcpPeer::SendAll(Bytes source) {
  std::vector<Bytes> parts;
  for (size_t i = 0; i < streams_.size(); ++i) parts.push_back(Part(source, i, streams_.size()));
  return Command(kAll, source.size(), parts);
}

double TcpPeer::CpuSeconds() const { return bench::CpuSeconds(getpid()) + bench::CpuSeconds(pid_); }

StatusOr<double> TcpPeer::SendPairs(Bytes pairs) { return Command(kPairs, pairs.size(), {pairs}); }

}  // namespace deltawire::bench
