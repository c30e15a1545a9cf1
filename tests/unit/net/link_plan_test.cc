// What is chosen for a way with such figures, and what the pulls over it are taken to show.
#include "common/net/link_plan.h"

#include <catch2/catch.hpp>
#include <chrono>

#include "common/net/rate_meter.h"

namespace deltawire::net::link_plan_test {
namespace {

constexpr double kGbit = 125e6;
constexpr uint64_t kMiB = 1 << 20;

TEST_CASE("link plan: streams by rate and round trip") {
  CHECK(ChooseStreams({}) == 4);                             // nothing is known
  CHECK(ChooseStreams({.round_trip_seconds = 1e-4}) == 4);   // one rack
  CHECK(ChooseStreams({.round_trip_seconds = 0.05}) == 12);  // taken for 1 Gbit/s
  CHECK(ChooseStreams({.round_trip_seconds = 0.2}) == 32);
  CHECK(ChooseStreams({0.2, kGbit}) == 32);
  CHECK(ChooseStreams({0.2, kGbit / 5}) == 10);
  CHECK(ChooseStreams({0.2, kGbit / 50}) == 4);  // a slow line needs few
  CHECK(ChooseStreams({0.01, 10 * kGbit}) == 24);
  CHECK(ChooseStreams({5e-5, 100 * kGbit}) == 13);  // by what a core moves
  CHECK(ChooseStreams({1, 1000 * kGbit}) == 32);
}

TEST_CASE("link plan: more rate or more delay never means fewer streams") {
  for (double trip = 1e-5; trip < 2; trip *= 1.7) {
    for (double rate = 1e5; rate < 1e11; rate *= 1.7) {
      CAPTURE(trip, rate);
      const uint16_t now = ChooseStreams({trip, rate});
      CHECK(ChooseStreams({trip * 1.7, rate}) >= now);
      CHECK(ChooseStreams({trip, rate * 1.7}) >= now);
    }
  }
}

TEST_CASE("link plan: memory is asked for only where the kernel's tuning does not reach") {
  const LinkFigures far{0.2, kGbit};  // 25 MB on the way
  CHECK(ChooseBuffer(far, 32, 4 * kMiB, 4 * kMiB) == 0);
  CHECK(ChooseBuffer(far, 4, 4 * kMiB, 4 * kMiB) == 4 * kMiB);  // and the kernel doubles it
  CHECK(ChooseBuffer(far, 4, 4 * kMiB, 64 * kMiB) == 12'500'000);
  CHECK(ChooseBuffer(far, 4, 256 * kMiB, 4 * kMiB) == 0);
  // A stock kernel's limit is below what it tunes to.
  CHECK(ChooseBuffer(far, 4, 4 * kMiB, 212992) == 0);
  CHECK(ChooseBuffer(far, 0, 4 * kMiB, 4 * kMiB) == 4 * kMiB);
}

TEST_CASE("link plan: what waits in a socket is what it sends in a moment") {
  CHECK(ChooseUnsent({}, 4) == 128 << 10);
  CHECK(ChooseUnsent({1e-4, kGbit / 10}, 4) == 156'250);
  CHECK(ChooseUnsent({0.2, kGbit}, 32) == 195'312);
  CHECK(ChooseUnsent({0.2, kGbit / 100}, 32) == 128 << 10);
  CHECK(ChooseUnsent({0.2, 100 * kGbit}, 4) == 1 << 20);
}

TEST_CASE("link record: calls are believed until connections have shown the round trip") {
  LinkRecord record;
  CHECK(record.figures() == LinkFigures{});
  record.Called(0);
  record.Called(0.3);
  record.Called(0.25);
  record.Called(0.4);
  CHECK(record.figures().round_trip_seconds == 0.25);
  record.Pulled({.link = {.round_trip_seconds = 0.2}});
  record.Called(0.1);
  CHECK(record.figures().round_trip_seconds == 0.2);
}

TEST_CASE("link record: a short pull says at least, a long one says how fast") {
  LinkRecord record;
  // A small delta over a long way: nothing but slow start.
  record.Pulled({.link = {0.2, 2e6}, .seconds = 1});
  CHECK(record.figures().bytes_per_s == 0);
  CHECK(ChooseStreams(record.figures()) == 32);
  record.Pulled({.link = {0.2, 4e8}, .seconds = 1});
  CHECK(record.figures().bytes_per_s == 4e8);
  record.Pulled({.link = {0.2, 1e8}, .seconds = 3});
  CHECK(record.figures().bytes_per_s == 1e8);
  record.Pulled({.link = {0.2, 1e6}, .seconds = 3});
  CHECK(record.figures().bytes_per_s == Approx(1e7));
  record.Pulled({.link = {0.2, 0}, .seconds = 0.1});  // shorter than a window
  CHECK(record.figures().bytes_per_s == Approx(1e7));
  record.Pulled({.link = {0.2, 5e7}, .seconds = 0.3});
  CHECK(record.figures().bytes_per_s == 5e7);
}

TEST_CASE("rate meter: the best fifth of a second counts") {
  RateMeter meter;
  const auto start = std::chrono::steady_clock::time_point(std::chrono::seconds(5));
  const auto at = [&](int ms) { return start + std::chrono::milliseconds(ms); };
  CHECK(meter.best() == 0);
  meter.Add(1000, at(0));
  meter.Add(1000, at(100));
  CHECK(meter.best() == 0);
  meter.Add(1000, at(200));
  CHECK(meter.best() == Approx(15'000));
  meter.Add(1'000'000, at(400));
  CHECK(meter.best() == Approx(5e6));
  // A stall makes its window longer, not the next one fuller.
  meter.Add(1'000'000, at(2400));
  CHECK(meter.best() == Approx(5e6));
  CHECK(meter.seconds() == Approx(2.4));
}

}  // namespace
}  // namespace deltawire::net::link_plan_test
