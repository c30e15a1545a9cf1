// The acceptor when file descriptors run short and when some are free again, and the listening
// sockets that it is given.
#include "common/base/acceptor.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <vector>

#include "tests/support/tcp.h"

namespace deltawire::acceptor_test {
namespace {

using namespace std::chrono_literals;

UniqueFd Dial(uint16_t port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(testing::ConnectHere(fd.get(), port));
  return fd;
}

/// Stands for a server: it keeps every connection that the acceptor hands over.
struct Keeper {
  explicit Keeper(size_t reserve) {
    auto listening = ListenTcp("127.0.0.1", 0);
    REQUIRE(listening.ok());
    port = PortOf(*listening);
    acceptor = std::make_unique<Acceptor>(std::move(*listening), "test", reserve, [this](int fd) {
      std::lock_guard lock(mu);
      kept.emplace_back(fd);
      cv.notify_all();
    });
  }
  bool WaitKept(size_t n, std::chrono::milliseconds deadline = 20s) {
    std::unique_lock lock(mu);
    return cv.wait_for(lock, deadline, [&] { return kept.size() >= n; });
  }
  std::mutex mu;
  std::condition_variable cv;
  std::vector<UniqueFd> kept;
  uint16_t port = 0;
  std::unique_ptr<Acceptor> acceptor;
};

/// Changes the process's limit of descriptors and puts the old one back at the end.
struct Limit {
  Limit() { REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0); }
  ~Limit() { setrlimit(RLIMIT_NOFILE, &before); }
  void Set(rlim_t n) const {
    const rlimit now{n, before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &now) == 0);
  }
  rlimit before{};
};

int HighestFd() {
  const int fd = dup(STDERR_FILENO);
  close(fd);
  return fd;
}

TEST_CASE("connections are handed over until Stop") {
  Keeper keeper(0);
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 20; ++i) clients.push_back(Dial(keeper.port));
  CHECK(keeper.WaitKept(20));
  keeper.acceptor->Stop();
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  CHECK_FALSE(testing::ConnectHere(fd, keeper.port));
  close(fd);
}

TEST_CASE("a process without a free descriptor accepts again within a second of having one") {
#ifdef __SANITIZE_ADDRESS__
  std::puts(
      "SKIPPED: the sanitizer looks at objects' types through pipes, and there are none here");
  return;
#endif
  Limit limit;
  Keeper keeper(0);
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 5; ++i) clients.push_back(Dial(keeper.port));
  REQUIRE(keeper.WaitKept(5));
  // Each client makes its socket before the limit falls, so it can still connect. The server's end
  // of the connection then finds no free descriptor.
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  }
  limit.Set(static_cast<rlim_t>(HighestFd()));
  for (size_t i = 5; i < 8; ++i) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(keeper.port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(connect(clients[i].get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
  }
  CHECK_FALSE(keeper.WaitKept(6, 300ms));
  // The descriptors become free all at once, and no new connection comes whose arrival could wake
  // the acceptor: it has to try again by itself.
  {
    std::lock_guard lock(keeper.mu);
    keeper.kept.clear();
  }
  CHECK(keeper.WaitKept(3, 1000ms));
}

TEST_CASE("connections that would eat into the reserve are refused") {
  Limit limit;
  Keeper keeper(10);
  std::vector<UniqueFd> clients;
  clients.push_back(Dial(keeper.port));
  REQUIRE(keeper.WaitKept(1));
  // The reserve is at most a quarter of the limit, so the limit must be far above four times the
  // reserve of 10 for all of it to count.
  std::vector<UniqueFd> others;
  while (HighestFd() < 100) others.emplace_back(dup(STDERR_FILENO));
  limit.Set(static_cast<rlim_t>(HighestFd()) + 5);
  const UniqueFd refused = Dial(keeper.port);
  pollfd closed{refused.get(), POLLIN, 0};
  CHECK(poll(&closed, 1, 20000) == 1);
  char byte = 0;
  CHECK(recv(refused.get(), &byte, 1, 0) <= 0);
  CHECK_FALSE(keeper.WaitKept(2, 1ms));
  others.clear();
  const UniqueFd taken = Dial(keeper.port);
  CHECK(keeper.WaitKept(2));
}

TEST_CASE("an address that is taken and an address that cannot be used are different errors") {
  Keeper keeper(0);
  const auto taken = ListenTcp("127.0.0.1", keeper.port);
  CHECK(taken.status().code() == StatusCode::kAlreadyExists);
  CHECK(MessageOf(taken.status()).find(std::to_string(keeper.port)) != std::string_view::npos);
  CHECK(ListenTcp("300.1.2.3", 0).status().code() == StatusCode::kInvalidArgument);
  CHECK(ListenTcp("203.0.113.7", 0).status().code() == StatusCode::kInvalidArgument);
  CHECK(ListenTcp("localhost", 0).ok());
}

TEST_CASE("a socket file is its owner's alone") {
  const std::string path = fmt::format("/tmp/deltawire-acceptor-{}.sock", getpid());
  {
    const auto listening = ListenUnix(path);
    REQUIRE(listening.ok());
    struct stat st {};
    REQUIRE(stat(path.c_str(), &st) == 0);
    CHECK((st.st_mode & 0777) == 0600);
    CHECK(ListenUnix(path).status().code() == StatusCode::kAlreadyExists);
  }
  unlink(path.c_str());
  CHECK(ListenUnix("/tmp/" + std::string(200, 'x')).status().code() ==
        StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace deltawire::acceptor_test
