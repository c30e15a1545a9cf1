// A fixed set of worker threads for CPU-bound work over chunks.
// Owner: one per daemon; outlives all that submit to it. The destructor finishes queued work.
// Threads: all methods may be called from any thread; ParallelFor also runs on the caller. On a
// machine with several NUMA nodes each thread stays on the processors of one.
// Cost: one lock per Submit; ParallelFor takes one atomic per index. Tasks must not throw.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <vector>

#include "common/base/cpu_nodes.h"
#include "common/base/sync.h"

namespace deltawire {

class ThreadPool {
 public:
  /// `threads` 0 means one per core that this process may run on.
  explicit ThreadPool(size_t threads = 0) : ThreadPool(threads, AvailableCpuNodes()) {}
  /// With other nodes than the machine says. REQUIRES: at least one, none of them empty.
  ThreadPool(size_t threads, CpuNodes nodes);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  size_t size() const { return threads_.size(); }

  void Submit(std::function<void()> task);

  /// Calls fn(i) for every i in [0, n), n < 2^32, on up to size() threads of which the caller is
  /// one; returns when all calls have returned. Calls start in rising order. With several NUMA
  /// nodes each has a contiguous part of [0, n), the same one for the same n: its threads start
  /// that part in rising order, and when it is done take the last of the fullest other part.
  void ParallelFor(size_t n, const std::function<void(size_t)>& fn);

 private:
  void Run(size_t node);
  /// Of the thread that runs this: its own, or where it happens to run if it is no pool's.
  size_t NodeOfThisThread() const;

  const CpuNodes nodes_;
  std::vector<size_t> threads_of_node_;  // as many as nodes_
  Mutex mu_;
  CondVar cv_;
  std::deque<std::function<void()>> queue_;
  bool stopping_ = false;
  std::vector<Thread> threads_;
};

}  // namespace deltawire
