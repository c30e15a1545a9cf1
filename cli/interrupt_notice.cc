#include "cli/interrupt_notice.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <thread>

namespace deltawire::cli {
namespace {

// Leaves out signals that this process ignores: shells make background jobs ignore SIGINT.
sigset_t EndingSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction action {};
    if (sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) continue;
    sigaddset(&set, signal);
  }
  return set;
}

}  // namespace

InterruptNotice& InterruptNotice::Of(const char* command) {
  // Never destroyed, because its thread runs until the process ends.
  static auto* const notice = [command] {
    auto* made = new InterruptNotice(command);
    const sigset_t signals = EndingSignals();
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    std::thread([made] { made->Wait(); }).detach();
    return made;
  }();
  return *notice;
}

void InterruptNotice::Set(std::string text) {
  std::lock_guard lock(mu_);
  text_ = std::move(text);
}

void InterruptNotice::Wait() {
  const sigset_t signals = EndingSignals();
  int signal = 0;
  sigwait(&signals, &signal);
  std::lock_guard lock(mu_);
  // Erase a progress line, if there is one.
  if (isatty(STDERR_FILENO) != 0) std::fputs("\r\x1b[K", stderr);
  if (!text_.empty()) {
    std::fprintf(stderr, "deltawire %s: interrupted: %s\n", command_, text_.c_str());
  }
  // The flush may block on a full pipe, so a second signal must be able to end the process.
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  std::fflush(nullptr);
  _exit(128 + signal);
}

}  // namespace deltawire::cli
