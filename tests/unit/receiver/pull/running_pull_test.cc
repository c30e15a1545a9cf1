// A replica's running pull, and its progress.
#include "receiver/pull/running_pull.h"

#include <catch2/catch.hpp>

namespace deltawire::receiver::running_pull_test {
namespace {

using State = RunningPull::State;

Follower::Target Target(bool incoming, uint64_t root) {
  const Identity part{.lineage = {1, 2}, .id = {1, 2}, .root = root};
  return {.whole = part, .parts = {part}, .incoming = incoming};
}

}  // namespace

TEST_CASE("running pull: its state is that of the version, until it ends") {
  RunningPull pull(1);
  CHECK(pull.state() == State::kNone);
  pull.Begin(nullptr, Target(false, 7));
  CHECK(pull.state() == State::kComplete);
  CHECK_FALSE(pull.awaits_agents());
  pull.Begin(nullptr, Target(true, 7));
  CHECK(pull.state() == State::kIncoming);
  CHECK(pull.awaits_agents());
  CHECK_FALSE(pull.began_unwritten());
  pull.Begin(nullptr, Target(true, 0));
  CHECK(pull.state() == State::kUnwritten);
  CHECK(pull.began_unwritten());
  pull.NoteProgress(0, 40, RunningPull::Time(std::chrono::hours(1)));
  pull.MarkPublished();
  CHECK(pull.state() == State::kPublished);
  CHECK(pull.began_unwritten());
  pull.End();
  CHECK(pull.state() == State::kNone);
  CHECK(pull.bytes_done() == 40);
  pull.Begin(nullptr, Target(true, 0));
  pull.Expect(9);
  CHECK(pull.bytes_done() == 0);
  CHECK(pull.bytes_expected() == 9);
}

TEST_CASE("running pull: bytes of all agents count once, and a report is due now and then") {
  RunningPull pull(2);
  RunningPull::Time now{std::chrono::hours(1)};
  pull.Begin(nullptr, Target(false, 7));
  pull.Expect(100);
  CHECK(pull.NoteProgress(0, 10, now));
  CHECK_FALSE(pull.NoteProgress(1, 5, now));
  CHECK_FALSE(pull.NoteProgress(0, 8, now));  // an older word came later
  CHECK(pull.bytes_done() == 15);
  now += std::chrono::milliseconds(200);
  CHECK(pull.NoteProgress(0, 30, now));
  CHECK(pull.bytes_done() == 35);
}

}  // namespace deltawire::receiver::running_pull_test
