#include "common/daemon/lifetime.h"

#include <pthread.h>
#include <signal.h>
#include <systemd/sd-daemon.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <optional>
#include <system_error>

namespace deltawire {
namespace {

sigset_t HandledSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGHUP);
  return set;
}

/// Returns the interval at which systemd expects a keep-alive; nullopt: it expects none.
std::optional<std::chrono::microseconds> WatchdogPeriod() {
  uint64_t limit = 0;
  if (sd_watchdog_enabled(/*unset_environment=*/0, &limit) <= 0) return std::nullopt;
  return std::chrono::microseconds(limit / 2);
}

/// Waits for a signal of `set`, at most for `limit`; returns 0 if none came.
int WaitForSignal(const sigset_t& set, std::optional<std::chrono::microseconds> limit) {
  int received = 0;
  if (!limit) {
    while (sigwait(&set, &received) != 0) {
    }
    return received;
  }
  timespec rest{};
  rest.tv_sec = static_cast<time_t>(limit->count() / 1'000'000);
  rest.tv_nsec = static_cast<long>(limit->count() % 1'000'000 * 1000);
  received = sigtimedwait(&set, nullptr, &rest);
  return received > 0 ? received : 0;
}

}  // namespace

void BlockTerminationSignals() {
  const sigset_t set = HandledSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGCHLD, SIG_DFL);
}

void ExplainUncaughtExceptions() {
  std::set_terminate([] {
    // The log's own thread may be the one that failed to start, so write to stderr directly.
    try {
      if (const std::exception_ptr thrown = std::current_exception())
        std::rethrow_exception(thrown);
      std::fputs("error: terminated without an exception; please report it\n", stderr);
    } catch (const std::bad_alloc&) {
      std::fputs(
          "error: out of memory; look at MemoryMax= of the unit or the container's limit, "
          "and at what docs/operations.md (Sizing) wants\n",
          stderr);
    } catch (const std::system_error& e) {
      const bool limit = e.code() == std::errc::resource_unavailable_try_again;
      std::fprintf(stderr, "error: %s%s\n", e.what(),
                   limit ? ": no further thread can be started; raise TasksMax= of the unit, the "
                           "container's limit of processes, or ulimit -u and -v"
                         : "; please report it");
    } catch (const std::exception& e) {
      std::fprintf(stderr, "error: %s; please report it\n", e.what());
    } catch (...) {
      std::fputs("error: terminated by an exception of unknown type; please report it\n", stderr);
    }
    std::abort();
  });
}

const char* ServeUntilTermination(const std::function<std::string()>& status,
                                  const std::function<void()>& reload) {
  sd_notifyf(0, "READY=1\nSTATUS=%s", status().c_str());
  const auto period = WatchdogPeriod();
  const sigset_t set = HandledSignals();
  int received = 0;
  while ((received = WaitForSignal(set, period)) == 0 || received == SIGHUP) {
    if (received == SIGHUP) {
      // systemd considers the reload finished at READY=1, and matches it to this reload by the time
      // given here.
      timespec now{};
      clock_gettime(CLOCK_MONOTONIC, &now);
      const long long micros = now.tv_sec * 1'000'000LL + now.tv_nsec / 1000;
      sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%lld", micros);
      reload();
      sd_notify(0, "READY=1");
    }
    sd_notifyf(0, "WATCHDOG=1\nSTATUS=%s", status().c_str());
  }
  sd_notify(0, "STOPPING=1");
  return received == SIGINT ? "SIGINT" : "SIGTERM";
}

}  // namespace deltawire
