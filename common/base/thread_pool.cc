#include "common/base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <memory>

namespace deltawire {
namespace {

size_t AvailableCores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace

ThreadPool::ThreadPool(size_t threads) {
  if (threads == 0) threads = AvailableCores();
  for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mu_);
    stopping_ = true;
  }
  cv_.notify_all();
  for (auto& t : threads_) t.join();
}

void ThreadPool::Submit(std::function<void()> task) {
  {
    std::lock_guard lock(mu_);
    queue_.push_back(std::move(task));
  }
  cv_.notify_one();
}

void ThreadPool::Run() {
  std::unique_lock lock(mu_);
  while (true) {
    cv_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
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
    std::atomic<size_t> next{0};
    std::mutex mu;
    std::condition_variable done;
    size_t finished = 0;
  };
  auto shared = std::make_shared<Shared>();
  auto work = [shared, n, &fn] {
    size_t count = 0;
    for (size_t i; (i = shared->next.fetch_add(1, std::memory_order_relaxed)) < n; ++count) fn(i);
    if (count == 0) return;
    std::lock_guard lock(shared->mu);
    shared->finished += count;
    if (shared->finished == n) shared->done.notify_all();
  };
  const size_t helpers = std::min(n, size()) - 1;
  for (size_t i = 0; i < helpers; ++i) Submit(work);
  work();
  std::unique_lock lock(shared->mu);
  shared->done.wait(lock, [&] { return shared->finished == n; });
}

}  // namespace deltawire
