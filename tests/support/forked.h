// A fork of the test or benchmark that runs a function of its own, to be stopped, killed or waited
// for. Owner: the case; the child dies with the object, and with the case's process.
// Threads: one, which lives as long as the child may. Errors: an exception where it cannot start.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <optional>
#include <stdexcept>
#include <system_error>

namespace deltawire::testing {

class Forked {
 public:
  /// The child ends with 0 when `body` returns, unless it has ended otherwise before.
  explicit Forked(const std::function<void()>& body) {
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
    if (pid_ > 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() == parent) body();
    ::_exit(0);
  }
  ~Forked() { Kill(); }
  Forked(const Forked&) = delete;
  Forked& operator=(const Forked&) = delete;

  pid_t pid() const { return pid_; }
  /// As waitpid says how it has ended; nothing while it has not.
  std::optional<int> Ended() { return Reap(WNOHANG); }
  /// The same, once it has ended.
  int Wait() { return *Reap(0); }
  void Kill() {
    Signal(SIGKILL);
    Wait();
  }
  /// Nothing happens where it is known to have ended.
  void Signal(int signal) const {
    if (!status_) ::kill(pid_, signal);
  }
  /// Returns when it stands still, until SIGCONT.
  void Stop() const {
    Signal(SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }

 private:
  std::optional<int> Reap(int options) {
    int status = 0;
    if (!status_ && ::waitpid(pid_, &status, options) == pid_) status_ = status;
    return status_;
  }

  pid_t pid_ = -1;
  std::optional<int> status_;
};

/// A fork that has something and keeps it until it is killed.
class Holder {
 public:
  /// Returns when `prepare` has returned true in the child.
  explicit Holder(const std::function<bool()>& prepare)
      : child_([this, &prepare] {
          const char ok = prepare();
          if (::write(ready_.ends[1], &ok, 1) != 1) ::_exit(1);
          for (;;) ::pause();
        }) {
    char ok = 0;
    if (::read(ready_.ends[0], &ok, 1) != 1 || ok != 1) {
      throw std::runtime_error("the forked process could not prepare what it is to hold");
    }
  }
  pid_t pid() const { return child_.pid(); }

 private:
  struct Pipe {
    Pipe() {
      if (::pipe(ends) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
    }
    ~Pipe() {
      ::close(ends[0]);
      ::close(ends[1]);
    }
    int ends[2];
  };
  Pipe ready_;
  Forked child_;
};

}  // namespace deltawire::testing
