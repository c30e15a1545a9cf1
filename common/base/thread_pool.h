// A fixed set of worker threads for CPU-bound work over chunks.
// Owner: one pool per daemon, which outlives its users; the destructor finishes queued work.
// Threads: all methods may be called from any thread; ParallelFor also runs on the caller. On a
// machine with several NUMA nodes each thread stays on the processors of one node.
// Cost: one lock per Submit; ParallelFor takes one atomic per index. Tasks must not throw.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <vector>

#include "common/base/checked_mutex.h"
#include "common/base/cpu_nodes.h"
#include "common/base/sync.h"

namespace deltawire {

class ThreadPool {
 public:
  /// `threads` 0 means one thread per core that this process may run on.
  explicit ThreadPool(size_t threads = 0) : ThreadPool(threads, AvailableCpuNodes()) {}
  /// Takes the nodes from the caller instead of the machine. REQUIRES: at least one node, none
  /// empty.
  ThreadPool(size_t threads, CpuNodes nodes);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  size_t size() const { return threads_.size(); }

  void Submit(std::function<void()> task);

  /// Calls fn(i) for every i in [0, n) on up to size() threads, one of them the caller, and returns
  /// when all calls have returned. Calls start in rising order. With several NUMA nodes each node
  /// gets a contiguous part of [0, n), the same part for the same n. Its threads start that part in
  /// rising order, and then take indexes from the end of the fullest other part.
  /// REQUIRES: n < 2^32.
  void ParallelFor(size_t n, const std::function<void(size_t)>& fn);

 private:
  void Run(size_t node);
  /// The calling thread's node; for a thread outside of the pool, the node it currently runs on.
  size_t NodeOfThisThread() const;

  const CpuNodes nodes_;
  std::vector<size_t> threads_of_node_;  // as many as nodes_
  CheckedMutex mu_;
  CondVar cv_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Thread> threads_;
};

}  // namespace deltawire
