// The threads that run all bulk streams of a process. It hides one Asio io_context, so that no
// other room includes Asio. The daemon has one, which outlives every PullServer and PullClient.
// Stop or the destructor joins the threads.
#pragma once

#include <cstddef>
#include <memory>

namespace deltawire::net {

class IoThreads {
 public:
  /// 0 threads: one per core.
  explicit IoThreads(size_t threads = 0);
  ~IoThreads();
  IoThreads(const IoThreads&) = delete;
  IoThreads& operator=(const IoThreads&) = delete;

  /// Ends all streams, even waiting ones, and joins the threads. Idempotent.
  void Stop();

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace deltawire::net
