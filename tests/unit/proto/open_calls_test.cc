// Limits of long calls: of one caller, of all, and that a call which is over makes place.
#include "proto/open_calls.h"

#include <catch2/catch.hpp>

namespace deltawire {

using Catch::Matchers::Contains;

TEST_CASE("open calls: one caller's limit does not keep others out, and the limit of all does") {
  auto calls = std::make_unique<OpenCalls>("watches", OpenCalls::Limits{3, 2});
  auto a1 = calls->Take("a");
  const auto a2 = calls->Take("a");
  REQUIRE((a1.ok() && a2.ok()));
  const auto a3 = calls->Take("a");
  CHECK(absl::IsResourceExhausted(a3.status()));
  CHECK_THAT(std::string(a3.status().message()), Contains("a has 2 watches open"));
  const auto b1 = calls->Take("b");
  REQUIRE(b1.ok());
  const auto b2 = calls->Take("b");
  CHECK(absl::IsResourceExhausted(b2.status()));
  CHECK_THAT(std::string(b2.status().message()), Contains("3 watches are open"));
  a1 = absl::CancelledError("over");
  CHECK(calls->Take("b").ok());  // which is over at once
  CHECK(calls->Take("a").ok());
  calls.reset();  // b1 and a2 outlive it
}

}  // namespace deltawire
