// A fixed set of worker threads for CPU-bound work over chunks. A daemon has one pool, which
// outlives its users; the destructor finishes queued work. Thread-safe. On a machine with several
// NUMA nodes each thread stays on the processors of one node. Submit costs a lock, ParallelFor an
// atomic per index. Tasks must not throw.
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
  /// 0 threads: one per core that this process may run on.
  explicit ThreadPool(size_t threads = 0) : ThreadPool(threads, AvailableCpuNodes()) {}
  /// Uses the caller's nodes instead of the machine's. REQUIRES: at least one node, none empty.
  ThreadPool(size_t threads, CpuNodes nodes);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  size_t size() const { return threads_.size(); }

  void Submit(std::function<void()> task);

  /// Calls fn(i) for every i in [0, n) on up to size() threads, including the caller, and returns
  /// when all calls have returned. Calls start in rising order. With several NUMA nodes each node
  /// gets a contiguous part of [0, n), the same part for the same n. Its threads start that part in
  /// rising order, and then take indexes from the end of the fullest other part. REQUIRES: n <
  /// 2^32.
  void ParallelFor(size_t n, const std::function<void(size_t)>& fn);

 private:
  void Run(size_t node);
  /// Returns the calling thread's node. For a thread outside the pool: the node where it runs now.
  size_t NodeOfThisThread() const;

  const CpuNodes nodes_;
  std::vector<size_t> threads_of_node_;  // parallel to nodes_
  CheckedMutex mu_;
  CondVar cv_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Thread> threads_;
};

}  // namespace deltawire
