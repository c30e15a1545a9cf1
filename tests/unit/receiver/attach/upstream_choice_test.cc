// Which of several upstreams is used: failover, probes, the return to a preferred one.
#include "receiver/attach/upstream_choice.h"

#include <catch2/catch.hpp>
#include <set>

namespace deltawire::receiver::upstream_choice_test {
namespace {

using std::chrono::milliseconds;
using Failure = UpstreamChoice::Failure;
const UpstreamChoice::Time kStart{std::chrono::hours(1)};
const UpstreamChoice::Times kTimes;

/// Lets `upstream` answer probes, the first one well after it failed, until it may be returned to.
/// Returns when that was.
UpstreamChoice::Time AnswerTwice(UpstreamChoice& choice, size_t upstream,
                                 UpstreamChoice::Time now) {
  now = std::max(now, choice.NextProbeTime());
  REQUIRE(choice.NextToProbe(now) == upstream);
  REQUIRE_FALSE(choice.NoteProbe(upstream, true, now));
  CHECK_FALSE(choice.NextToProbe(now).has_value());
  const auto next = choice.NextProbeTime();
  CHECK(next >= now + kTimes.settle / 2);
  CHECK(next <= now + kTimes.settle);
  REQUIRE(choice.NextToProbe(next) == upstream);
  REQUIRE(choice.NoteProbe(upstream, true, next));
  return next;
}

}  // namespace

TEST_CASE("the first upstream is used as long as it works, and nobody is probed") {
  UpstreamChoice choice(3, 1);
  CHECK(choice.current() == 0);
  CHECK_FALSE(choice.NextToProbe(kStart).has_value());
  CHECK(choice.NextProbeTime() == UpstreamChoice::Time::max());
  choice.NoteSuccess(0);
  CHECK(choice.current() == 0);
}

TEST_CASE(
    "a failed upstream is left for the next in order, and failures of others change nothing") {
  UpstreamChoice choice(3, 1);
  choice.NoteFailure(2, Failure::kGone, kStart);
  CHECK(choice.current() == 0);
  choice.NoteFailure(0, Failure::kGone, kStart);
  CHECK(choice.current() == 1);
  // The third one has failed as lately as the second, and the first before both.
  choice.NoteFailure(1, Failure::kGone, kStart + milliseconds(40));
  CHECK(choice.current() != 1);
}

TEST_CASE("when all have failed, the one that may be tried soonest is the current one") {
  UpstreamChoice choice(2, 7);
  auto now = kStart;
  std::set<size_t> tried;
  for (int i = 0; i < 8; ++i) {
    tried.insert(choice.current());
    choice.NoteFailure(choice.current(), Failure::kGone, now);
    now += milliseconds(1);
  }
  CHECK(tried.size() == 2);
}

TEST_CASE("an upstream whose pause is over is preferred again at the next failure") {
  UpstreamChoice choice(3, 1);
  choice.NoteFailure(0, Failure::kGone, kStart);
  REQUIRE(choice.current() == 1);
  choice.NoteFailure(1, Failure::kGone, kStart + Backoff::kLongest);
  CHECK(choice.current() == 0);
}

TEST_CASE("a preferred upstream is used again after two answers with a pause between") {
  UpstreamChoice choice(2, 3);
  choice.NoteFailure(0, Failure::kGone, kStart);
  REQUIRE(choice.current() == 1);
  CHECK_FALSE(choice.NextToProbe(kStart).has_value());
  AnswerTwice(choice, 0, kStart);
  CHECK(choice.current() == 1);  // the owner says when: no pull may be running
  choice.Return(0);
  CHECK(choice.current() == 0);
  CHECK_FALSE(choice.NextToProbe(kStart + std::chrono::hours(1)).has_value());
}

TEST_CASE("an upstream that answers once and then fails begins anew") {
  UpstreamChoice choice(2, 3);
  choice.NoteFailure(0, Failure::kGone, kStart);
  auto now = choice.NextProbeTime();
  REQUIRE_FALSE(choice.NoteProbe(0, true, now));
  now = choice.NextProbeTime();
  REQUIRE_FALSE(choice.NoteProbe(0, false, now));
  now = choice.NextProbeTime();
  REQUIRE_FALSE(choice.NoteProbe(0, true, now));
  now = choice.NextProbeTime();
  CHECK(choice.NoteProbe(0, true, now));
}

TEST_CASE("an upstream that works but is behind is left when it was behind twice") {
  UpstreamChoice choice(3, 5);
  const uint64_t one = 1, two = 2;
  auto now = kStart;
  const auto compare = [&](bool newer, uint64_t news) {
    REQUIRE(choice.NextToCompare(now) == size_t{2});
    const bool behind = choice.NoteComparison(newer, news, now);
    CHECK_FALSE(choice.NextToCompare(now).has_value());
    CHECK(choice.NextCompareTime() >= now + kTimes.compare_every / 2);
    CHECK(choice.NextCompareTime() <= now + kTimes.compare_every);
    now = choice.NextCompareTime();
    return behind;
  };
  CHECK_FALSE(compare(false, one));
  CHECK_FALSE(compare(true, one));
  CHECK_FALSE(compare(true, two));  // the current one has told of something
  CHECK_FALSE(compare(false, two));
  CHECK_FALSE(compare(true, two));
  CHECK(compare(true, two));
  choice.NoteFailure(0, Failure::kGone, now);
  choice.NoteFailure(1, Failure::kGone, now);
  REQUIRE(choice.current() == 2);
  CHECK_FALSE(choice.NextToCompare(now).has_value());  // nobody is left to be compared with
}

TEST_CASE("pauses grow with each failure up to the longest, and receivers return apart") {
  std::set<int64_t> returns;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    UpstreamChoice choice(2, seed);
    auto now = kStart;
    choice.NoteFailure(0, Failure::kGone, now);
    SteadyClock::duration first{}, last{};
    for (int i = 0; i < 12; ++i) {
      last = choice.NextProbeTime() - now;
      if (i == 0) first = last;
      CHECK(last <= Backoff::kLongest);
      now = choice.NextProbeTime();
      choice.NoteProbe(0, false, now);
    }
    CHECK(last > 4 * first);
    CHECK(last >= Backoff::kLongest / 2);
    returns.insert((AnswerTwice(choice, 0, now) - now).count());
  }
  CHECK(returns.size() == 20);
}

TEST_CASE("one that answers and fails at its work is preferred again after pauses that grow") {
  UpstreamChoice choice(2, 4);
  auto now = kStart;
  std::vector<SteadyClock::duration> pauses;
  for (int i = 0; i < 8; ++i) {
    choice.NoteFailure(0, Failure::kBadWork, now);
    REQUIRE(choice.current() == 1);
    pauses.push_back(choice.NextProbeTime() - now);
    now = AnswerTwice(choice, 0, now);
    choice.Return(0);
  }
  CHECK(pauses[0] <= kTimes.first_doubt);
  for (int i = 1; i < 4; ++i) CHECK(pauses[i] > pauses[i - 1]);
  CHECK(pauses[7] >= kTimes.longest_doubt / 2);
  CHECK(pauses[7] <= kTimes.longest_doubt);
  // Answers alone are no proof of it; a pull is.
  choice.NoteSuccess(0);
  choice.NoteFailure(0, Failure::kBadWork, now);
  CHECK(choice.NextProbeTime() - now <= kTimes.first_doubt);
}

TEST_CASE(
    "another order: a new one that is preferred is used at once, a known one when it answers") {
  UpstreamChoice choice(1, 4);
  // The only one, then a new one before it.
  choice.Reorder({std::nullopt, 0}, kStart);
  CHECK(choice.current() == 0);
  // The new one fails, and keeps its pauses when others come after it.
  choice.NoteFailure(0, Failure::kGone, kStart);
  REQUIRE(choice.current() == 1);
  choice.Reorder({0, std::nullopt, 1}, kStart);
  CHECK(choice.current() == 1);  // what is new is preferred to the origin
  const auto now = AnswerTwice(choice, 0, kStart);
  CHECK(now > kStart);
  choice.Return(0);
  // The current one moves to another place, and stays what it is.
  choice.Reorder({1, 0, 2}, now);
  CHECK(choice.current() == 1);
  // It is none of them any more.
  choice.Reorder({0, 2}, now);
  CHECK(choice.current() == 0);
  choice.Reorder({1}, now);
  CHECK(choice.current() == 0);
  CHECK(choice.NextProbeTime() == UpstreamChoice::Time::max());
}

TEST_CASE("one that fails at its work is better than one that cannot be reached, but no better") {
  UpstreamChoice choice(3, 4);
  choice.NoteFailure(0, Failure::kBadWork, kStart);
  REQUIRE(choice.current() == 1);
  const auto later = kStart + Backoff::kLongest;
  for (int i = 0; i < 6; ++i) choice.NoteFailure(0, Failure::kBadWork, kStart);
  choice.NoteFailure(1, Failure::kGone, later);
  CHECK(choice.current() == 2);
  choice.NoteFailure(2, Failure::kGone, later);
  CHECK(choice.current() == 0);
}

}  // namespace deltawire::receiver::upstream_choice_test
