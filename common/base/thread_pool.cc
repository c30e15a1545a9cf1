#include "common/base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "common/base/index_parts.h"

namespace deltawire {
namespace {

/// With fewer threads than nodes, some node would have no thread. Then all nodes count as one, and
/// no thread is pinned.
CpuNodes NodesFor(size_t threads, CpuNodes nodes) {
  if (threads == 0 || threads >= nodes.size()) return nodes;
  for (size_t i = 1; i < nodes.size(); ++i) {
    nodes[0].insert(nodes[0].end(), nodes[i].begin(), nodes[i].end());
  }
  nodes.resize(1);
  return nodes;
}

size_t Cpus(const CpuNodes& nodes) {
  size_t cpus = 0;
  for (const auto& node : nodes) cpus += node.size();
  return cpus;
}

}  // namespace

ThreadPool::ThreadPool(size_t threads, CpuNodes nodes)
    : nodes_(NodesFor(threads, std::move(nodes))), threads_of_node_(nodes_.size()) {
  const size_t cpus = Cpus(nodes_);
  if (threads == 0) threads = cpus;
  // Thread i joins the node of processor number i * cpus / threads, so that every node gets threads
  // in proportion to its processors.
  size_t node = 0, end = nodes_[0].size();
  for (size_t i = 0; i < threads; ++i) {
    while (i * cpus / threads >= end) end += nodes_[++node].size();
    ++threads_of_node_[node];
    threads_.emplace_back([this, node] { Run(node); });
  }
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  cv_.notify_all();
  for (auto& t : threads_) t.join();
}

void ThreadPool::Submit(std::function<void()> task) {
  {
    MutexLock lock(mu_);
    queue_.push_back(std::move(task));
  }
  cv_.notify_one();
}

size_t ThreadPool::NodeOfThisThread() const {
  if (nodes_.size() == 1) return 0;
  const int cpu = ::sched_getcpu();
  for (size_t node = 0; node < nodes_.size(); ++node) {
    const bool here = std::ranges::find(nodes_[node], cpu) != nodes_[node].end();
    if (here && threads_of_node_[node] > 0) return node;
  }
  return 0;  // node 0 always has a thread
}

void ThreadPool::Run(size_t node) {
  if (nodes_.size() > 1) PinThisThread(nodes_[node]);
  MutexLock lock(mu_);
  while (true) {
    while (!stopping_ && queue_.empty()) cv_.wait(lock);
    if (queue_.empty()) return;
    auto task = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
  }
}

void ThreadPool::ParallelFor(size_t n, const std::function<void(size_t)>& fn) {
  if (n == 0) return;
  // Shared, because a helper task may start only after this call has returned.
  struct Shared {
    Shared(size_t n, std::span<const size_t> shares) : parts(n, shares) {}
    IndexParts parts;
    CheckedMutex mu;
    CondVar done;
    size_t finished = 0;
    std::exception_ptr thrown;  // the first exception
  };
  auto shared = std::make_shared<Shared>(n, threads_of_node_);
  auto work = [this, shared, n, &fn] {
    const size_t node = NodeOfThisThread();
    size_t count = 0;
    std::exception_ptr thrown;
    for (; const auto i = shared->parts.Next(node); ++count) {
      try {
        fn(*i);
      } catch (...) {
        thrown = std::current_exception();
      }
    }
    if (count == 0) return;
    MutexLock lock(shared->mu);
    if (thrown && !shared->thrown) shared->thrown = thrown;
    shared->finished += count;
    if (shared->finished == n) shared->done.notify_all();
  };
  const size_t helpers = std::min(n, size()) - 1;
  // An exception here would end `fn` while helpers still call it, so if memory is short the work
  // goes on with the helpers that have been queued.
  try {
    for (size_t i = 0; i < helpers; ++i) Submit(work);
  } catch (const std::bad_alloc&) {
  }
  work();
  MutexLock lock(shared->mu);
  shared->done.wait(lock, [&] { return shared->finished == n; });
  if (shared->thrown) std::rethrow_exception(shared->thrown);
}

}  // namespace deltawire
