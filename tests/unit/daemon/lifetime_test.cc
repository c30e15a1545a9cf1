// What systemd hears of a daemon, over the socket by which it is told (sd_notify(3)). The test's
// own datagram socket stands in for systemd's.
#include "common/daemon/lifetime.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

#include "tests/support/forked.h"
#include "tests/support/temp_dir.h"

namespace deltawire::lifetime_test {
namespace {

using testing::Forked;

class NotifySocket {
 public:
  NotifySocket() : fd_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path().copy(address.sun_path, sizeof address.sun_path - 1);
    REQUIRE(::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    const timeval limit{.tv_sec = 30, .tv_usec = 0};
    REQUIRE(::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
  }
  ~NotifySocket() { ::close(fd_); }

  std::string path() const { return dir_.path() / "notify"; }
  /// The next notice; "" when none comes for 30 s.
  std::string Next() {
    char text[4096];
    const ssize_t n = ::recv(fd_, text, sizeof text, 0);
    return {text, static_cast<size_t>(n < 0 ? 0 : n)};
  }
  /// Whether a notice is there already.
  bool Waiting() const {
    char byte;
    return ::recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0;
  }

 private:
  TempDir dir_;
  int fd_;
};

/// A process that serves until it is stopped, as systemd starts it. Exit 7: by SIGTERM.
template <typename Status>
Forked Serve(const NotifySocket& socket, const char* watchdog_us, Status status) {
  return Forked([&socket, watchdog_us, status] {
    ::setenv("NOTIFY_SOCKET", socket.path().c_str(), 1);
    if (watchdog_us != nullptr) ::setenv("WATCHDOG_USEC", watchdog_us, 1);
    BlockTerminationSignals();
    ::_exit(ServeUntilTermination(status, [] {}) == std::string("SIGTERM") ? 7 : 1);
  });
}

TEST_CASE("systemd hears that a daemon is ready, that it is alive, and that it stops") {
  NotifySocket socket;
  int asked = 0;
  Forked daemon = Serve(socket, "20000", [asked]() mutable { return std::to_string(++asked); });
  CHECK(socket.Next() == "READY=1\nSTATUS=1");
  CHECK(socket.Next() == "WATCHDOG=1\nSTATUS=2");
  CHECK(socket.Next() == "WATCHDOG=1\nSTATUS=3");
  daemon.Signal(SIGTERM);
  std::string last = socket.Next();
  while (last.starts_with("WATCHDOG=1")) last = socket.Next();
  CHECK(last == "STOPPING=1");
  CHECK(WEXITSTATUS(daemon.Wait()) == 7);
}

TEST_CASE("a daemon that hangs no longer says that it is alive") {
  NotifySocket socket;
  int asked = 0;
  Forked daemon = Serve(socket, "20000", [asked]() mutable {
    if (++asked == 3) ::kill(::getpid(), SIGSTOP);  // as a lock that is never released
    return std::to_string(asked);
  });
  CHECK(socket.Next() == "READY=1\nSTATUS=1");
  CHECK(socket.Next() == "WATCHDOG=1\nSTATUS=2");
  int status = 0;
  REQUIRE(::waitpid(daemon.pid(), &status, WUNTRACED) == daemon.pid());
  REQUIRE(WIFSTOPPED(status));
  CHECK_FALSE(socket.Waiting());
}

TEST_CASE("without a watchdog, a daemon only says that it is ready and that it stops") {
  NotifySocket socket;
  Forked daemon = Serve(socket, nullptr, [] { return "two models"; });
  CHECK(socket.Next() == "READY=1\nSTATUS=two models");
  daemon.Signal(SIGTERM);
  CHECK(socket.Next() == "STOPPING=1");
  CHECK(WEXITSTATUS(daemon.Wait()) == 7);
}

/// What a process with the handler prints before SIGABRT ends it, where `fail` throws.
std::string LastWords(const std::function<void()>& fail) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  Forked daemon([&ends, &fail] {
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[1]);
    const rlimit no_core{};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::signal(SIGABRT, SIG_DFL);  // Catch's own handler would report a failed case
    ExplainUncaughtExceptions();
    std::thread([&fail] { fail(); }).join();
  });
  ::close(ends[1]);
  std::string said;
  char part[512];
  for (ssize_t n = 0; (n = ::read(ends[0], part, sizeof part)) > 0;) {
    said.append(part, static_cast<size_t>(n));
  }
  ::close(ends[0]);
  const int status = daemon.Wait();
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
  return said;
}

TEST_CASE("an exception that nobody catches says what it was and which limit to look at") {
  const auto no_thread = std::make_error_code(std::errc::resource_unavailable_try_again);
  CHECK(LastWords([&] { throw std::system_error(no_thread); }).find("raise TasksMax=") !=
        std::string::npos);
  CHECK(LastWords([] { throw std::bad_alloc(); }).find("error: out of memory; look at") == 0);
  CHECK(LastWords([] { throw std::runtime_error("a mistake"); }) ==
        "error: a mistake; please report it\n");
}

TEST_CASE("a daemon learns how its programs end, also below a parent that ignores that") {
  Forked daemon([] {
    ::signal(SIGCHLD, SIG_IGN);
    BlockTerminationSignals();
    const pid_t program = ::fork();
    if (program == 0) ::_exit(5);
    int status = 0;
    ::_exit(::waitpid(program, &status, 0) == program && WEXITSTATUS(status) == 5 ? 7 : 1);
  });
  CHECK(WEXITSTATUS(daemon.Wait()) == 7);
}

TEST_CASE("a daemon that systemd has not started tells nobody") {
  Forked daemon([] {
    ::unsetenv("NOTIFY_SOCKET");
    BlockTerminationSignals();
    ::raise(SIGINT);
    ::_exit(ServeUntilTermination([] { return ""; }, [] {}) == std::string("SIGINT") ? 7 : 1);
  });
  CHECK(WEXITSTATUS(daemon.Wait()) == 7);
}

}  // namespace
}  // namespace deltawire::lifetime_test
