// The wait until receivers have committed: the receivers that count, the events that extend the
// wait, and its end.
#include "common/serving/commit_wait.h"

#include <catch2/catch.hpp>

namespace deltawire::commit_wait_test {
namespace {

constexpr AttachmentLimits kPatient{.silence = std::chrono::hours(1)};

VersionInfo Version(uint64_t version) {
  VersionInfo info;
  info.identity = {.lineage = {1, 7}, .id = {1, version}, .root = version * 10};
  return info;
}

CommitWait::Step Poll(CommitWait& wait) {
  auto step = wait.Poll();
  REQUIRE(step.ok());
  return *std::move(step);
}

/// Whether a wait that begins now is over at once.
bool Over(Attachments& a, const CommitWait::For& wanted) {
  CommitWait wait(a, "m", wanted);
  return Poll(wait).over;
}

}  // namespace

TEST_CASE("commit wait: it is over when each has committed, and says who has not") {
  Attachments a(kPatient);
  a.feed().Publish("m", Version(2));
  const auto first = a.Attach("m", "r1", "p1");
  const auto second = a.Attach("m", "r2", "p2");
  REQUIRE((first.ok() && second.ok()));
  REQUIRE(a.Attach("another", "r3", "p3").ok());
  CommitWait wait(a, "m", {.at_least = 2});
  auto step = Poll(wait);
  REQUIRE(step.tell.has_value());
  CHECK_FALSE(step.over);
  CHECK(step.tell->attached == 2);
  CHECK(step.tell->committed == 0);
  CHECK(step.tell->behind == std::vector<std::string>{"r1", "r2"});
  CHECK_FALSE(Poll(wait).tell.has_value());
  a.Report(*first, {.committed = Version(2).identity});
  step = Poll(wait);
  REQUIRE(step.tell.has_value());
  CHECK(step.tell->committed == 1);
  CHECK(step.tell->behind == std::vector<std::string>{"r2"});
  a.feed().Publish("m", Version(3));  // does not move the goal
  step = Poll(wait);
  REQUIRE(step.tell.has_value());
  CHECK(step.tell->newest == Version(3).identity);
  CHECK(step.tell->version == 2);
  a.Report(*first, {.phase = ReceiverPhase::kApplying});  // its only buffer changes
  a.Report(*second, {.committed = Version(1).identity});
  step = Poll(wait);
  CHECK_FALSE(step.tell.has_value());
  CHECK_FALSE(step.over);
  a.Report(*second, {.committed = Version(3).identity});
  step = Poll(wait);
  REQUIRE(step.tell.has_value());
  CHECK(step.tell->committed == 2);
  CHECK(step.over);
  a.Stop(absl::UnavailableError("the sender is stopping"));
  CHECK(absl::IsUnavailable(wait.Poll().status()));
}

TEST_CASE("commit wait: it goes by lineage and epoch, and needs enough receivers") {
  Attachments a(kPatient);
  const auto token = a.Attach("m", "r1", "p1");
  REQUIRE(token.ok());
  CHECK_FALSE(Over(a, {}));  // nothing is published yet
  const VersionInfo info = Version(5);
  a.feed().Publish("m", info);
  Identity held = info.identity;
  held.lineage = Hash128{7, 7};
  a.Report(*token, {.committed = held});
  CHECK_FALSE(Over(a, {}));
  a.Report(*token, {.committed = info.identity});
  CHECK(Over(a, {}));
  CHECK(Over(a, {.version = 4}));
  CHECK_FALSE(Over(a, {.version = 6}));
  CHECK_FALSE(Over(a, {.at_least = 2}));
  // A rollback to version 3: whoever holds version 5 of the epoch before has not got it.
  VersionInfo back = Version(3);
  back.identity.id.epoch = info.identity.id.epoch + 1;
  a.Report(*token, {.committed = Version(4).identity});
  CommitWait wait(a, "m", {});
  CHECK_FALSE(Poll(wait).over);
  a.feed().Publish("m", back);
  const auto step = Poll(wait);
  CHECK_FALSE(step.over);
  REQUIRE(step.tell.has_value());
  CHECK(step.tell->version == 3);
  a.Report(*token, {.committed = back.identity});
  CHECK(Poll(wait).over);
}

TEST_CASE("commit wait: it knows a part by its attempt, whatever the other parts are") {
  Attachments a(kPatient);
  const auto token = a.Attach("m", "r1", "p1");
  REQUIRE(token.ok());
  const auto waits = [&](const Identity& held, uint64_t version = 0) {
    a.Report(*token, {.committed = held});
    return !Over(a, {.version = version, .part = true});
  };
  VersionInfo part = Version(5);
  part.identity.attempt = 55;
  a.feed().Publish("m", part);
  // The other sender was rolled back more often, so its epoch is the whole state's.
  Identity whole{.lineage = {7, 7}, .id = {3, 5}, .root = 1, .attempt = 55};
  CHECK_FALSE(waits(whole));
  part.identity = {.lineage = part.identity.lineage, .id = {1, 6}, .root = 60, .attempt = 66};
  a.feed().Publish("m", part);
  CHECK(waits(whole));
  CHECK_FALSE(waits(whole, 5));  // a later version does not end what was asked for
  // The number was given up elsewhere and published again.
  part.identity.root = 61;
  part.identity.attempt = 67;
  a.feed().Publish("m", part);
  whole.id.version = 6;
  whole.attempt = 66;
  CHECK(waits(whole));
  whole.attempt = 67;
  CHECK_FALSE(waits(whole));
  // Published again with equal bytes, which receivers need not fetch.
  part.identity.attempt = 70;
  a.feed().Publish("m", part);
  CHECK_FALSE(waits(whole));
  // Another model takes the name: what receivers hold has its number, and another attempt.
  part.identity = {.lineage = {9, 9}, .id = {1, 6}, .root = 62, .attempt = 68};
  a.feed().Publish("m", part);
  CHECK(waits(whole));
}

TEST_CASE("commit wait: until versions are served, it goes by engines, and by who drives any") {
  Attachments a(kPatient);
  a.feed().Publish("m", Version(2));
  const CommitWait::For served{.until = CommitWait::Until::kServed};
  const auto plain = a.Attach("m", "plain", "p1");
  const auto driving = a.Attach("m", "driving", "p2");
  REQUIRE((plain.ok() && driving.ok()));
  a.Report(*plain, {.committed = Version(2).identity});
  CHECK_FALSE(Over(a, served));  // nobody is known to drive an engine
  a.Report(*driving, {.committed = Version(2).identity, .engines = {.engines = 2}});
  CHECK(Over(a, {}));
  CommitWait wait(a, "m", served);
  auto step = Poll(wait);
  REQUIRE(step.tell.has_value());
  CHECK(step.tell->attached == 1);
  CHECK(step.tell->behind == std::vector<std::string>{"driving"});
  bool news = false;
  const auto listener =
      a.watchers().Add("m", ModelWatchers::Topic::kReceivers, [&] { news = true; });
  a.Report(*driving, {.committed = Version(2).identity,
                      .engines = {.engines = 2, .oldest = Version(1).identity}});
  CHECK(std::exchange(news, false));
  CHECK_FALSE(Poll(wait).over);
  a.Report(*driving, {.committed = Version(2).identity,
                      .engines = {.engines = 2, .oldest = Version(2).identity}});
  CHECK(std::exchange(news, false));
  step = Poll(wait);
  REQUIRE(step.tell.has_value());
  CHECK(step.tell->committed == 1);
  CHECK(step.over);
  // One engine was lost, so what it serves is not known.
  a.Report(*driving, {.committed = Version(2).identity, .engines = {.engines = 2}});
  CHECK_FALSE(Over(a, served));
}

TEST_CASE("commit wait: a receiver that does not say what it drives is waited for") {
  Attachments a(kPatient);
  a.feed().Publish("m", Version(2));
  const CommitWait::For served{.until = CommitWait::Until::kServed};
  const auto driving = a.Attach("m", "driving", "p1");
  const auto older = a.Attach("m", "older", "p2");
  REQUIRE((driving.ok() && older.ok()));
  a.Report(*driving, {.committed = Version(2).identity,
                      .engines = {.engines = 1, .oldest = Version(2).identity}});
  CHECK(Over(a, served));
  a.Report(*older, {.committed = Version(2).identity, .engines = {.engines = std::nullopt}});
  CommitWait wait(a, "m", served);
  const auto step = Poll(wait);
  CHECK_FALSE(step.over);
  REQUIRE(step.tell.has_value());
  CHECK(step.tell->behind == std::vector<std::string>{"older"});
}

}  // namespace deltawire::commit_wait_test
