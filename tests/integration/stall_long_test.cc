// The long form of stall_test.cc: a receiver that stops reading for thirty seconds.
#include <catch2/catch.hpp>
#include <chrono>

#include "tests/integration/stalled_receiver.h"

namespace deltawire::testing::stall_long_test {

TEST_CASE("thirty seconds of SIGSTOP cost the trainer no more than the grace") {
  for (uint64_t seed = 23; seed < 43; ++seed) {
    StalledReceiver stalled(seed);
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - start < std::chrono::seconds(30)) stalled.Publish();
    if (stalled.was_cut()) return stalled.Check(0.05);
  }
  FAIL("none of twenty receivers was stopped in the middle of a frame");
}

}  // namespace deltawire::testing::stall_long_test
