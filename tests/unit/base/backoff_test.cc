// A backoff's pauses: they double up to a limit, and differ between processes.
#include "common/base/backoff.h"

#include <catch2/catch.hpp>
#include <cstdint>

namespace deltawire::backoff_test {

using std::chrono::milliseconds;

TEST_CASE("backoff: pauses double from the first to the longest, less a random part") {
  const uint64_t seed = 7;
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  Backoff backoff(milliseconds(100), milliseconds(700));
  const auto is_next = [&](SteadyClock::duration pause, milliseconds whole) {
    return pause <= whole && pause >= whole / 2;
  };
  for (const int whole : {100, 200, 400, 700, 700}) {
    CAPTURE(whole);
    CHECK(is_next(backoff.Next(random), milliseconds(whole)));
  }
  CHECK(is_next(backoff.Next(random, milliseconds(50)), milliseconds(50)));
  CHECK(is_next(backoff.Next(random), milliseconds(700)));  // the limit was for one pause
  backoff.Reset();
  CHECK(is_next(backoff.Next(random), milliseconds(100)));
}

TEST_CASE("backoff: processes that failed together come back at different times") {
  Backoff a, b;
  std::mt19937_64 one(1), two(2);
  CHECK(a.Next(one) != b.Next(two));
}

}  // namespace deltawire::backoff_test
