#include "common/base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <catch2/catch.hpp>
#include <future>
#include <memory>
#include <set>
#include <vector>

namespace deltawire {
namespace {

TEST_CASE("a pool has the asked-for number of threads, and at least one by default") {
  CHECK(ThreadPool(3).size() == 3);
  CHECK(ThreadPool().size() >= 1);
}

TEST_CASE("ParallelFor calls every index exactly once, and has finished when it returns") {
  const size_t threads = GENERATE(1u, 2u, 5u);
  const size_t n = GENERATE(0u, 1u, 2u, 4u, 1000u);
  CAPTURE(threads, n);
  ThreadPool pool(threads);
  std::vector<std::atomic<int>> calls(n);
  pool.ParallelFor(n, [&](size_t i) { ++calls[i]; });
  CHECK(std::all_of(calls.begin(), calls.end(), [](const auto& c) { return c == 1; }));
}

TEST_CASE("ParallelFor runs on size() threads at once, the caller among them") {
  constexpr size_t kThreads = 4;
  ThreadPool pool(kThreads);
  std::barrier all(kThreads);  // passes only when as many calls are under way together
  std::mutex mu;
  std::set<std::thread::id> ids;
  pool.ParallelFor(kThreads, [&](size_t) {
    all.arrive_and_wait();
    std::lock_guard lock(mu);
    ids.insert(std::this_thread::get_id());
  });
  CHECK(ids.size() == kThreads);
  CHECK(ids.contains(std::this_thread::get_id()));
}

TEST_CASE("ParallelFor never has more calls under way than the pool has threads") {
  ThreadPool pool(3);
  std::atomic<int> now = 0;
  std::atomic<int> most = 0;
  pool.ParallelFor(5000, [&](size_t) {
    const int mine = ++now;
    int seen = most;
    while (mine > seen && !most.compare_exchange_weak(seen, mine)) {
    }
    --now;
  });
  CHECK(most >= 1);
  CHECK(most <= 3);
}

TEST_CASE("a pool of one thread starts the calls in rising order") {
  ThreadPool pool(1);
  std::vector<size_t> order;
  pool.ParallelFor(100, [&](size_t i) { order.push_back(i); });
  REQUIRE(order.size() == 100);
  CHECK(std::is_sorted(order.begin(), order.end()));
}

TEST_CASE("ParallelFor inside ParallelFor does not wait for ever") {
  ThreadPool pool(2);
  std::atomic<int> calls = 0;
  pool.ParallelFor(8, [&](size_t) { pool.ParallelFor(8, [&](size_t) { ++calls; }); });
  CHECK(calls == 64);
}

TEST_CASE("ParallelFor returns although every worker is busy with something else") {
  ThreadPool pool(2);
  std::promise<void> release;
  std::shared_future<void> released = release.get_future();
  for (int i = 0; i < 2; ++i) pool.Submit([released] { released.wait(); });
  std::atomic<int> calls = 0;
  pool.ParallelFor(10, [&](size_t) { ++calls; });
  CHECK(calls == 10);
  release.set_value();
}

TEST_CASE("the destructor finishes what was submitted, and tasks are let go") {
  std::atomic<int> done = 0;
  const auto token = std::make_shared<int>(0);
  {
    ThreadPool pool(2);
    for (int i = 0; i < 200; ++i) pool.Submit([&done, token] { ++done; });
  }
  CHECK(done == 200);
  CHECK(token.use_count() == 1);
}

TEST_CASE("several threads may use one pool at once") {
  ThreadPool pool(3);
  std::atomic<size_t> sum = 0;
  std::vector<std::thread> users;
  for (int u = 0; u < 4; ++u) {
    users.emplace_back([&] {
      for (int r = 0; r < 20; ++r) pool.ParallelFor(50, [&](size_t i) { sum += i; });
    });
  }
  for (auto& u : users) u.join();
  CHECK(sum == 4 * 20 * (49 * 50 / 2));
}

}  // namespace
}  // namespace deltawire
