// A scope that blocks SIGPIPE, for libraries that write to sockets without MSG_NOSIGNAL, as Gloo
// and OpenSSL do: otherwise a peer's death would kill this process. It blocks the signal in its own
// thread, and for good in threads that start within the scope.
#pragma once

#include <signal.h>
#include <time.h>

#include <cerrno>

namespace deltawire {

class SigpipeBlocked {
 public:
  SigpipeBlocked() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  /// Discards a SIGPIPE that arrived meanwhile, and restores the thread's mask.
  ~SigpipeBlocked() {
    const timespec none{};
    if (!was_pending_) {
      while (sigtimedwait(&pipe_, nullptr, &none) == -1 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeBlocked(const SigpipeBlocked&) = delete;
  SigpipeBlocked& operator=(const SigpipeBlocked&) = delete;

 private:
  sigset_t pipe_;
  sigset_t before_;
  bool was_pending_;
};

}  // namespace deltawire
