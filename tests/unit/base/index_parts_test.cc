#include "common/base/index_parts.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>
#include <vector>

namespace deltawire::index_parts_test {
namespace {

std::vector<size_t> TakeAll(IndexParts& parts, size_t part) {
  std::vector<size_t> taken;
  while (const auto i = parts.Next(part)) taken.push_back(*i);
  return taken;
}

TEST_CASE("one part is handed out in rising order") {
  const size_t n = GENERATE(0u, 1u, 7u);
  const size_t shares[] = {3};
  IndexParts parts(n, shares);
  const auto taken = TakeAll(parts, 0);
  REQUIRE(taken.size() == n);
  for (size_t i = 0; i < n; ++i) CHECK(taken[i] == i);
  CHECK_FALSE(parts.Next(0).has_value());
}

TEST_CASE("parts are in proportion to their shares, and each begins with its own") {
  const size_t shares[] = {1, 3, 0, 4};
  IndexParts parts(80, shares);
  CHECK(parts.Next(3) == 40u);
  CHECK(parts.Next(1) == 10u);
  CHECK(parts.Next(0) == 0u);
  CHECK(parts.Next(1) == 11u);
  CHECK(parts.Next(0) == 1u);
  CHECK(parts.Next(2) == 79u);  // its share is 0, so it takes from another part
}

TEST_CASE("an empty part takes the last of the fullest other") {
  const size_t shares[] = {1, 2, 3};
  IndexParts parts(12, shares);  // the parts [0, 2), [2, 6) and [6, 12)
  const std::vector<size_t> want = {0, 1, 11, 10, 5, 9, 4, 8, 3, 7, 2, 6};
  CHECK(TakeAll(parts, 0) == want);
  for (size_t p = 0; p < 3; ++p) CHECK_FALSE(parts.Next(p).has_value());
}

TEST_CASE("fewer indexes than parts are handed out, and so are as many as there may be") {
  const size_t shares[] = {1, 1, 1};
  IndexParts few(2, shares);
  CHECK(few.Next(0) == 0u);  // taken from the second part, since the first is empty
  CHECK(few.Next(2) == 1u);
  CHECK_FALSE(few.Next(1).has_value());
  const size_t most = 0xffffffff;
  IndexParts many(most, shares);
  CHECK(many.Next(2) == most / 3 * 2);
  CHECK(many.Next(0) == 0u);
}

TEST_CASE("many threads are given each index exactly once") {
  constexpr size_t kThreads = 8;
  const size_t n = 100'000;
  const size_t shares[] = {5, 1, 2};
  std::vector<std::atomic<int>> times(n);
  IndexParts parts(n, shares);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      while (const auto i = parts.Next(t % 3)) ++times[*i];
    });
  }
  for (auto& t : threads) t.join();
  CHECK(std::all_of(times.begin(), times.end(), [](const auto& c) { return c == 1; }));
}

}  // namespace
}  // namespace deltawire::index_parts_test
