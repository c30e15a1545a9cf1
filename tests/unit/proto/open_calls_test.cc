// Limits of long calls: of one caller, of all, and that a call which is over makes place.
#include "proto/open_calls.h"

#include <catch2/catch.hpp>

namespace deltawire::open_calls_test {

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

TEST_CASE("open calls: the bytes that calls hold have a limit for one caller and one for all") {
  OpenCalls calls("requests", OpenCalls::Limits{.most = 3000, .most_per_caller = 2000});
  auto a1 = calls.TakeBytes("a", 1500);
  REQUIRE(a1.ok());
  const auto a2 = calls.TakeBytes("a", 501);
  CHECK(absl::IsResourceExhausted(a2.status()));
  CHECK_THAT(std::string(a2.status().message()),
             Contains("requests of a would hold 2.00 kB, and 2.00 kB is the most of one caller"));
  const auto b1 = calls.TakeBytes("b", 1500);
  REQUIRE(b1.ok());
  const auto c1 = calls.TakeBytes("c", 1);
  CHECK(absl::IsResourceExhausted(c1.status()));
  CHECK_THAT(std::string(c1.status().message()), Contains("requests of all callers would hold"));
  a1 = absl::CancelledError("over");
  CHECK(calls.TakeBytes("a", 1500).ok());
}

}  // namespace deltawire::open_calls_test
