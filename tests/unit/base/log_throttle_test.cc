// One line per key and interval, however many keys strangers make up.
#include "common/base/log_throttle.h"

#include <catch2/catch.hpp>
#include <string>

namespace deltawire::log_throttle_test {
namespace {

TEST_CASE("log throttle: a key is let through once an interval, and others beside it") {
  LogThrottle throttle(std::chrono::seconds(10));
  const SteadyClock::time_point start{std::chrono::hours(1)};
  CHECK(throttle.Allow("a", start));
  CHECK_FALSE(throttle.Allow("a", start + std::chrono::seconds(9)));
  CHECK(throttle.Allow("b", start + std::chrono::seconds(9)));
  CHECK(throttle.Allow("a", start + std::chrono::seconds(10)));
  CHECK_FALSE(throttle.Allow("a", start + std::chrono::seconds(11)));
}

TEST_CASE("log throttle: very many keys do not pile up, and the newest is kept") {
  LogThrottle throttle(std::chrono::seconds(10));
  const SteadyClock::time_point now{std::chrono::hours(1)};
  for (int i = 0; i < 6000; ++i) {
    const std::string key = "10.0.0." + std::to_string(i);
    REQUIRE(throttle.Allow(key, now));
    REQUIRE_FALSE(throttle.Allow(key, now));
    REQUIRE(throttle.size() <= LogThrottle::kMostKeys);
  }
}

}  // namespace
}  // namespace deltawire::log_throttle_test
