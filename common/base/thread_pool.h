// A fixed set of worker threads for CPU-bound work over chunks.
// Owner: one per daemon; outlives all that submit to it. The destructor finishes queued work.
// Threads: all methods may be called from any thread; ParallelFor also runs on the caller.
// Cost: one lock per Submit; ParallelFor takes one atomic per index. Tasks must not throw.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace deltawire {

class ThreadPool {
 public:
  /// `threads` 0 means one per core that this process may run on.
  explicit ThreadPool(size_t threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  size_t size() const { return threads_.size(); }

  void Submit(std::function<void()> task);

  /// Calls fn(i) for every i in [0, n), in rising order of start, on up to size() threads of
  /// which the caller is one; returns when all calls have returned.
  void ParallelFor(size_t n, const std::function<void(size_t)>& fn);

 private:
  void Run();

  std::mutex mu_;
  std::condition_variable cv_;
  std::deque<std::function<void()>> queue_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace deltawire
