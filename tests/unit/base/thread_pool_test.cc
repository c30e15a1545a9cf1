#include "common/base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <catch2/catch.hpp>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <vector>

namespace deltawire::thread_pool_test {
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
  std::barrier all(kThreads);  // lets nobody through until kThreads calls run together
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

TEST_CASE("ParallelFor makes all calls though some throw, and then throws what one of them threw") {
  ThreadPool pool(3);
  std::atomic<int> calls{0};
  const auto call = [&](size_t i) {
    ++calls;
    if (i % 10 == 7) throw std::bad_alloc();
  };
  CHECK_THROWS_AS(pool.ParallelFor(100, call), std::bad_alloc);
  CHECK(calls == 100);
}

TEST_CASE("a pool of one thread starts the calls in rising order") {
  ThreadPool pool(1);
  std::vector<size_t> order;
  pool.ParallelFor(100, [&](size_t i) { order.push_back(i); });
  REQUIRE(order.size() == 100);
  CHECK(std::is_sorted(order.begin(), order.end()));
}

/// The indexes that each thread was given, in the order in which it was given them.
std::vector<std::vector<size_t>> GivenByThread(ThreadPool& pool, size_t n) {
  std::mutex mu;
  std::map<std::thread::id, std::vector<size_t>> given;
  pool.ParallelFor(n, [&](size_t i) {
    std::lock_guard lock(mu);
    given[std::this_thread::get_id()].push_back(i);
  });
  std::vector<std::vector<size_t>> result;
  for (auto& [id, list] : given) result.push_back(std::move(list));
  return result;
}

/// True if `list` is rising indexes of [begin, end) and then falling indexes from outside of it.
bool FollowsOrder(const std::vector<size_t>& list, size_t begin, size_t end) {
  const auto own = [&](size_t i) { return i >= begin && i < end; };
  const auto stolen = std::find_if_not(list.begin(), list.end(), own);
  return std::is_sorted(list.begin(), stolen) && std::none_of(stolen, list.end(), own) &&
         std::is_sorted(stolen, list.end(), std::greater<>());
}

TEST_CASE("with two nodes a thread rises through its node's part, then falls through the other") {
  // Some of these processors need not exist: a thread that cannot be pinned still works for its
  // node.
  const CpuNodes nodes =
      GENERATE(CpuNodes{{0}, {1}}, CpuNodes{{0}, {1000, 1001}}, CpuNodes{{1022}, {1023}});
  ThreadPool pool(6, nodes);
  const size_t n = 3000;
  const size_t middle = nodes[1].size() == 2 ? 1000 : 1500;
  for (int round = 0; round < 20; ++round) {
    CAPTURE(round, nodes.size(), middle);
    std::vector<size_t> all;
    for (const auto& list : GivenByThread(pool, n)) {
      CHECK((FollowsOrder(list, 0, middle) || FollowsOrder(list, middle, n)));
      all.insert(all.end(), list.begin(), list.end());
    }
    std::sort(all.begin(), all.end());
    REQUIRE(all.size() == n);
    for (size_t i = 0; i < n; ++i) REQUIRE(all[i] == i);
  }
}

TEST_CASE("a node whose threads are all held up has its part done by the other's") {
  ThreadPool pool(2, {{0}, {1}});
  std::atomic<int> calls = 0;
  std::promise<void> release;
  std::shared_future<void> released = release.get_future();
  pool.ParallelFor(100, [&](size_t) {
    if (calls++ == 0) return released.wait();  // until all other calls have run
    if (calls == 100) release.set_value();
  });
  CHECK(calls == 100);
}

TEST_CASE("fewer threads than nodes start the calls in rising order") {
  ThreadPool pool(1, {{0}, {1}, {2}});
  const auto given = GivenByThread(pool, 100);
  REQUIRE(given.size() == 1);
  REQUIRE(given[0].size() == 100);
  CHECK(std::is_sorted(given[0].begin(), given[0].end()));
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
}  // namespace deltawire::thread_pool_test
