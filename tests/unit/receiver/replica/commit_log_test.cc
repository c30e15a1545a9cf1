// The commits that a replica remembers, and the time that each waited for its pull.
#include "receiver/replica/commit_log.h"

#include <catch2/catch.hpp>

namespace deltawire::receiver::commit_log_test {
namespace {

using std::chrono::seconds;

Identity Version(uint64_t version) {
  return {.lineage = {1, 2}, .id = {1, version}, .root = version, .attempt = version};
}

}  // namespace

TEST_CASE("commit log: serials rise, and a commit again only gets new statistics") {
  CommitLog log;
  const SteadyClock::time_point now{std::chrono::hours(1)};
  int news = 0;
  const auto listener = log.OnCommit([&] { ++news; });
  CHECK_FALSE(log.CommitAfter(0)->has_value());
  log.TakeUp(Version(1));
  CHECK((*log.CommitAfter(0))->serial == 1);
  CHECK(log.recent().empty());  // it is not of this process
  CHECK(log.Add(Version(2), {}, {}, now, false));
  CHECK((*log.CommitAfter(1))->id == Version(2));
  PullStats again;
  again.payload_bytes = 7;
  CHECK_FALSE(log.Add(Version(2), again, {}, now, false));
  CHECK_FALSE(log.CommitAfter(2)->has_value());
  CHECK(log.last()->stats.payload_bytes == 7);
  CHECK(log.Add(Version(2), {}, {}, now, true));  // in a directory that was made anew
  CHECK(log.last()->serial == 3);
  CHECK(news == 0);
  log.Notify();
  CHECK(news == 1);
  log.Stop();
  CHECK(news == 2);
  CHECK(absl::IsUnavailable(log.CommitAfter(0).status()));
}

TEST_CASE("commit log: only the latest commits are kept") {
  CommitLog log;
  for (uint64_t v = 1; v <= CommitLog::kRecent + 5; ++v) log.Add(Version(v), {}, {}, {}, false);
  const auto recent = log.recent();
  REQUIRE(recent.size() == CommitLog::kRecent);
  CHECK(recent.front().id == Version(6));
}

TEST_CASE("commit log: a version queues from its first word until its pull begins") {
  CommitLog log;
  const SteadyClock::time_point start{std::chrono::hours(1)};
  log.NoteNamed(Version(1), start);
  log.NoteNamed(Version(2), start + seconds(1));
  log.NoteNamed(Version(3), start + seconds(9));
  CHECK(log.Add(Version(2), {}, {}, start + seconds(4), false)->queue == 3);
  CHECK(log.Add(Version(1), {}, {}, start + seconds(5), false)->queue == 0);  // forgotten
  // It overtook the pull.
  CHECK(log.Add(Version(3), {}, {}, start + seconds(8), false)->queue == 0);
}

}  // namespace deltawire::receiver::commit_log_test
