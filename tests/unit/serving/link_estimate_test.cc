// What the durations of pulls tell of a link's speed.
#include "common/serving/link_estimate.h"

#include <catch2/catch.hpp>

namespace deltawire::link_estimate_test {
namespace {

constexpr uint64_t kMega = 1'000'000;

}  // namespace

TEST_CASE("the first telling pull sets the estimate, small ones say nothing") {
  LinkEstimate link;
  CHECK(link.bytes_per_s() == 0);
  link.Add(1000, 1.0, false);
  link.Add(kMega, 0, false);
  CHECK(link.bytes_per_s() == 0);
  link.Add(kMega, 0.01, false);
  CHECK(link.bytes_per_s() == Approx(1e8));
  link.Add(60'000, 10.0, false);
  CHECK(link.bytes_per_s() == Approx(1e8));
}

TEST_CASE("a link that turns slow or fast is noticed within a few long pulls") {
  LinkEstimate link;
  link.Add(10 * kMega, 0.1, false);
  for (int i = 0; i < 6; ++i) link.Add(kMega, 5.0, false);
  CHECK(link.bytes_per_s() < 3e5);
  CHECK(link.bytes_per_s() > 2e5);
  for (int i = 0; i < 6; ++i) link.Add(10 * kMega, 0.1, false);
  CHECK(link.bytes_per_s() > 8e7);
}

TEST_CASE("a short small pull moves the estimate little") {
  LinkEstimate link;
  link.Add(10 * kMega, 0.1, false);
  link.Add(100'000, 0.005, false);
  CHECK(link.bytes_per_s() > 9e7);
  CHECK(link.bytes_per_s() < 1e8);
}

TEST_CASE("a pull that its coders held up raises the estimate, and never lowers it") {
  LinkEstimate link;
  link.Add(kMega, 1.0, false);
  link.Add(kMega, 2.0, true);
  CHECK(link.bytes_per_s() == Approx(1.1e6));
  link.Add(kMega, 0.1, true);
  CHECK(link.bytes_per_s() == Approx(1e7));
}

TEST_CASE("an estimate that only rises stays a number that a slow pull brings down") {
  LinkEstimate link;
  for (int i = 0; i < 10'000; ++i) link.Add(kMega, 0.1, true);
  CHECK(link.bytes_per_s() == Approx(1e12));
  for (int i = 0; i < 60; ++i) link.Add(10 * kMega, 10.0, false);
  CHECK(link.bytes_per_s() == Approx(1e6).epsilon(0.01));
}

TEST_CASE("what is sent again is a ratio of what was sent lately") {
  LinkEstimate link;
  CHECK(link.view().sent_again_ratio == 0);
  link.AddFacts({});
  CHECK(link.view().congestion_control.empty());
  link.AddFacts({.round_trip_seconds = 0.2,
                 .sent_bytes = 10 * kMega,
                 .sent_again_bytes = kMega,
                 .congestion_control = "bbr"});
  CHECK(link.view().sent_again_ratio == Approx(0.1));
  CHECK(link.view().round_trip_seconds == 0.2);
  CHECK(link.view().congestion_control == "bbr");
  for (int i = 0; i < 20; ++i) link.AddFacts({.sent_bytes = 100 * kMega});
  CHECK(link.view().sent_again_ratio < 0.001);
  CHECK(link.view().round_trip_seconds == 0.2);
}

}  // namespace deltawire::link_estimate_test
