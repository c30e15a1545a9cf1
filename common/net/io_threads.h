// The threads that run all of a process's bulk streams: one Asio io_context behind a firewall, so
// that no other room includes Asio. Owner: one per daemon; outlives every PullServer and
// PullClient. Threads: fixed number, started at construction, joined by Stop or the destructor.
#pragma once

#include <cstddef>
#include <memory>

namespace deltawire::net {

class IoThreads {
 public:
  /// `threads` 0 means one per core.
  explicit IoThreads(size_t threads = 0);
  ~IoThreads();
  IoThreads(const IoThreads&) = delete;
  IoThreads& operator=(const IoThreads&) = delete;

  /// Aborts whatever still waits and joins. Idempotent.
  void Stop();

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace deltawire::net
