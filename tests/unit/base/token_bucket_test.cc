// Rate limits: what is let through over time, bursts, and several who share one limit.
#include "common/base/token_bucket.h"

#include <catch2/catch.hpp>
#include <random>

namespace deltawire::token_bucket_test {
namespace {

using std::chrono::nanoseconds;
using Clock = SteadyClock;

TEST_CASE("token bucket: what is sent as told never exceeds the rate by more than a burst") {
  const uint64_t seed = 0xB0C4E7;
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  for (const uint64_t rate : {10'000ull, 1'000'000ull, 10'000'000'000ull}) {
    TokenBucket bucket(rate);
    const Clock::time_point start{std::chrono::hours(1)};
    Clock::time_point now = start;
    uint64_t sent = 0;
    for (int i = 0; i < 2000; ++i) {
      const uint64_t bytes = 1 + random() % (rate / 20);
      now += bucket.Take(bytes, now);
      // By now everything before these bytes has had its time, but for rounding to nanoseconds.
      const double seconds = std::chrono::duration<double>(now - start).count();
      REQUIRE(static_cast<double>(sent) <=
              static_cast<double>(rate) * (seconds + 0.1) * 1.00001 + 1);
      sent += bytes;
      if (random() % 50 == 0) now += std::chrono::milliseconds(random() % 3000);
    }
  }
}

TEST_CASE("token bucket: a sender that always sends gets the rate") {
  TokenBucket bucket(1'000'000);
  Clock::time_point now{std::chrono::hours(1)};
  const auto start = now;
  for (int i = 0; i < 100; ++i) now += bucket.Take(100'000, now);
  // 10 MB at 1 MB/s, less the first burst and the last piece, which may still be on its way.
  CHECK(std::chrono::duration<double>(now - start).count() == Approx(9.8).margin(0.01));
}

TEST_CASE("token bucket: the more share it, the smaller the pieces") {
  TokenBucket bucket(10'000'000);
  CHECK(bucket.PieceBytes(1 << 19) == 1 << 19);
  for (int i = 0; i < 10; ++i) bucket.Join();
  CHECK(bucket.PieceBytes(1 << 19) == 100'000);
  for (int i = 0; i < 990; ++i) bucket.Join();
  CHECK(bucket.PieceBytes(1 << 19) == 4096);
  CHECK(bucket.PieceBytes(100) == 100);
  for (int i = 0; i < 1000; ++i) bucket.Leave();
  CHECK(bucket.PieceBytes(1 << 19) == 1 << 19);
  CHECK(TokenBucket(0).PieceBytes(1 << 19) == 1 << 19);
}

TEST_CASE("token bucket: those who share it wait for one another, and none waits without a limit") {
  TokenBucket shared(1000);
  const Clock::time_point now{std::chrono::hours(1)};
  CHECK(shared.Take(1000, now) == nanoseconds(0));
  CHECK(shared.Take(1000, now) == std::chrono::milliseconds(900));
  CHECK(shared.Take(1, now) == std::chrono::milliseconds(1900));
  TokenBucket none(0);
  CHECK_FALSE(none.limits());
  CHECK(none.Take(1ull << 50, now) == nanoseconds(0));
  CHECK(none.Take(1, now) == nanoseconds(0));
}

}  // namespace
}  // namespace deltawire::token_bucket_test
