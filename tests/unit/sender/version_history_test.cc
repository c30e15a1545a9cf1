// When receivers had what was published: whom a version was delivered to, and who was last.
#include "sender/agent/version_history.h"

#include <catch2/catch.hpp>

namespace deltawire::sender::version_history_test {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

VersionInfo Version(uint64_t version) {
  VersionInfo info;
  info.identity = {.lineage = {1, 2}, .id = {1, version}, .root = 3, .attempt = 100 + version};
  info.ready_unix_nanos = static_cast<int64_t>(version) * kSecond;
  return info;
}

TEST_CASE("version history: a delivery counts from ready, and the slowest receiver stays") {
  VersionHistory history;
  history.Add(Version(7));
  history.Add(Version(8));
  Identity whole = Version(7).identity;  // as a receiver of several agents names it
  whole.lineage = {5, 6};
  whole.root = 9;
  CHECK(history.CountCommit(whole, {.payload_bytes = 1}, 9 * kSecond).value_or(-1) == Approx(2.0));
  CHECK(history.CountCommit(whole, {.payload_bytes = 2}, 12 * kSecond).value_or(-1) == Approx(5.0));
  CHECK(history.CountCommit(whole, {.payload_bytes = 3}, 10 * kSecond).value_or(-1) == Approx(3.0));
  const auto recent = history.recent();
  REQUIRE(recent.size() == 2);
  CHECK(recent[0].info.id().version == 7);
  CHECK(recent[0].receivers == 3);
  CHECK(recent[0].delivered_seconds == Approx(5.0));
  CHECK(recent[0].slowest.payload_bytes == 2);
  CHECK(recent[1].receivers == 0);
}

TEST_CASE("version history: what it does not know is no delivery, and time does not run back") {
  VersionHistory history;
  CHECK_FALSE(history.CountCommit(Version(7).identity, {}, kSecond).has_value());
  history.Add(Version(7));
  Identity again = Version(7).identity;
  again.attempt = 1;  // offloaded again
  CHECK_FALSE(history.CountCommit(again, {}, 8 * kSecond).has_value());
  CHECK(history.CountCommit(Version(7).identity, {}, 6 * kSecond).value_or(-1) == Approx(0.0));
}

TEST_CASE("version history: only the last versions are kept") {
  VersionHistory history;
  for (uint64_t v = 1; v <= VersionHistory::kKept + 3; ++v) history.Add(Version(v));
  const auto recent = history.recent();
  REQUIRE(recent.size() == VersionHistory::kKept);
  CHECK(recent.front().info.id().version == 4);
  CHECK(recent.back().info.id().version == VersionHistory::kKept + 3);
  CHECK_FALSE(history.CountCommit(Version(3).identity, {}, kSecond).has_value());
}

}  // namespace
}  // namespace deltawire::sender::version_history_test
