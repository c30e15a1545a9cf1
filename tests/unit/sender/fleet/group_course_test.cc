// The rounds of a group, by events and times alone: who decides, who is named, and what every
// member is told in every order of what may happen.
#include "sender/agent/fleet/group_course.h"

#include <catch2/catch.hpp>
#include <random>

namespace deltawire::sender::group_course_test {
namespace {

using Phase = GroupPhase;
using State = GroupMemberState;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Hash128 kLineage{1, 2}, kOther{3, 4};

Identity Version(uint64_t version, uint64_t epoch = 1, Hash128 lineage = kLineage) {
  return {lineage, {epoch, version}, 1000 * epoch + version, 7};
}

struct Group {
  explicit Group(GroupCourse::Traits traits = {}, GroupDecision last = {})
      : course(
            [&] {
              traits.name = "g";
              if (traits.members.empty()) traits.members = {"a", "b"};
              return traits;
            }(),
            last, 100, Now()) {}

  static GroupCourse::Time At(milliseconds t) { return GroupCourse::Time(seconds(1000) + t); }
  GroupCourse::Time Now() const { return At(now); }
  void Pass(milliseconds t) {
    now += t;
    course.Tick(Now());
  }
  void Says(const std::string& id, const Identity& committed, bool prepared = false,
            const std::string& refusal = "", uint64_t round = 0) {
    course.Reported(id, committed, {round == 0 ? course.status().round : round, prepared, refusal},
                    "", Now());
  }
  void Attach(const std::string& id, const Identity& committed = Version(1)) {
    course.Attached(id, Now());
    Says(id, committed);
  }
  Status Begin(const Identity& target) { return course.Begin(target, Now()); }
  /// Both members are there, and a round for version 2 is open.
  void Open() {
    Attach("a");
    Attach("b");
    REQUIRE(Begin(Version(2)).ok());
  }
  void Decide() {
    Says("a", Version(1), true);
    Says("b", Version(1), true);
    REQUIRE(course.status().phase == Phase::kDeciding);
  }

  milliseconds now{0};
  GroupCourse course;
};

TEST_CASE("a group that has never decided tells its members nothing but that they are members") {
  Group g;
  CHECK(g.course.word() == GroupWord{.name = "g"});
  CHECK(g.course.NextTick(g.Now()) == GroupCourse::Time::max());
}

TEST_CASE("all prepare, the decision is written, and only then is the word given") {
  Group g;
  g.Open();
  CHECK(g.course.word().prepare == Version(2));
  CHECK(g.course.word().commit.empty());
  g.Says("a", Version(1), true);
  CHECK(g.course.status().phase == Phase::kPreparing);
  CHECK_FALSE(g.course.to_write());
  g.Says("b", Version(1), true);
  REQUIRE(g.course.status().phase == Phase::kDeciding);
  // Not written yet: nobody is told, and what is prepared is kept.
  CHECK(g.course.word().commit.empty());
  CHECK(g.course.word().prepare == Version(2));
  CHECK(g.course.to_write() == GroupDecision{g.course.status().round, Version(2)});
  g.course.Written(g.Now());
  CHECK(g.course.word().commit == Version(2));
  CHECK(g.course.word().prepare.empty());
  g.now += milliseconds(3);
  g.Says("b", Version(2));
  CHECK(g.course.status().phase == Phase::kCommitting);
  g.now += milliseconds(4);
  g.Says("a", Version(2));
  CHECK(g.course.status().phase == Phase::kIdle);
  const GroupOutcome& last = g.course.status().last;
  CHECK(last.committed);
  CHECK(last.target == Version(2));
  CHECK(last.members == 2);
  CHECK(last.late == 0);
  CHECK(last.spread_seconds == Approx(0.004));
  CHECK(last.word_seconds == Approx(0.007));
  CHECK(last.message.empty());
  CHECK(g.course.status().commits == 1);
}

TEST_CASE("answers to an earlier round do not count") {
  Group g;
  g.Open();
  const uint64_t first = g.course.status().round;
  g.Says("a", Version(1), false, "no room");
  REQUIRE(g.course.status().phase == Phase::kIdle);
  REQUIRE(g.Begin(Version(2)).ok());
  CHECK(g.course.status().round > first);
  g.Says("a", Version(1), true, "", first);
  CHECK(g.course.roster().Find("a")->state == State::kAsked);
  g.Says("b", Version(1), false, "no room", first);
  CHECK(g.course.status().phase == Phase::kPreparing);
}

TEST_CASE("a refusal aborts at once, and the message says whose it was") {
  Group g;
  g.Open();
  g.Says("a", Version(1), true);
  g.Says("b", Version(1), false, "it is paused");
  CHECK(g.course.status().phase == Phase::kIdle);
  CHECK_FALSE(g.course.status().last.committed);
  CHECK(g.course.status().last.message == "b cannot prepare it: it is paused");
  CHECK(g.course.word().prepare.empty());
  CHECK(g.course.word().commit.empty());
  CHECK(g.course.status().aborts == 1);
}

TEST_CASE("a time-out aborts, and names who is not ready and who has gone") {
  Group g({.members = {"a", "b", "c"}, .timeout = milliseconds(500)});
  g.Attach("a");
  g.Attach("b");
  REQUIRE(g.Begin(Version(2)).ok());
  g.Says("a", Version(1), true);
  g.course.Reported("b", Version(1), {g.course.status().round, false, ""}, "no route", g.Now());
  CHECK(g.course.NextTick(g.Now()) == g.At(milliseconds(500)));
  g.Pass(milliseconds(499));
  CHECK(g.course.status().phase == Phase::kPreparing);
  g.Pass(milliseconds(1));
  REQUIRE(g.course.status().phase == Phase::kIdle);
  CHECK(g.course.status().last.message ==
        "not all had prepared it after 500 ms: b (not ready: no route), c (not attached)");
}

TEST_CASE("a member that dies after it prepared counts as not prepared until it says so again") {
  Group g;
  g.Open();
  g.Says("a", Version(1), true);
  g.course.Detached("a", g.Now());
  g.Says("b", Version(1), true);
  CHECK(g.course.status().phase == Phase::kPreparing);
  g.Says("a", Version(1));
  CHECK(g.course.status().phase == Phase::kPreparing);
  g.Says("a", Version(1), true);
  CHECK(g.course.status().phase == Phase::kDeciding);
}

TEST_CASE("once decided, nothing takes the decision back") {
  Group g;
  g.Open();
  g.Decide();
  g.course.Detached("a", g.Now());
  g.Says("b", Version(1), false, "it is paused");
  g.course.Published(Version(1, 2), g.Now());
  g.Pass(seconds(1000));
  REQUIRE(g.course.status().phase == Phase::kDeciding);
  g.course.Written(g.Now());
  CHECK(g.course.word().commit == Version(2));
  // Whoever has gone or cannot is late, is named, and follows.
  g.Says("b", Version(1), false, "it is paused");
  REQUIRE(g.course.status().phase == Phase::kIdle);
  CHECK(g.course.status().last.committed);
  CHECK(g.course.status().last.late == 2);
  CHECK(g.course.status().last.message == "late: a, b (it is paused)");
  CHECK(g.course.word().commit == Version(2));
  g.Says("a", Version(2));
  CHECK(g.course.roster().Find("a")->state == State::kCommitted);
  CHECK(g.course.roster().Find("b")->state == State::kLate);
}

TEST_CASE("a decision that cannot be written is none") {
  Group g;
  g.Open();
  g.Decide();
  g.course.NotWritten(absl::ResourceExhaustedError("no space"), g.Now());
  CHECK(g.course.status().phase == Phase::kIdle);
  CHECK(g.course.word().commit.empty());
  CHECK(g.course.word().prepare.empty());
  CHECK(g.course.status().last.message == "the decision could not be written: no space");
}

TEST_CASE("a restarted sender tells what was decided, and nothing of a round that was not") {
  Group g({}, {41, Version(5)});
  CHECK(g.course.word() == GroupWord{.name = "g", .round = 41, .commit = Version(5)});
  g.Attach("a", Version(4));
  g.Attach("b", Version(5));
  CHECK(g.course.roster().Find("b")->state == State::kCommitted);
  REQUIRE(g.Begin(Version(6)).ok());
  CHECK(g.course.status().round >= 100);
  CHECK(g.course.word().commit == Version(5));
  CHECK(g.course.word().prepare == Version(6));
}

TEST_CASE("one that does not commit in time is late, and the spread is of the others") {
  Group g({.members = {"a", "b", "c"}, .timeout = milliseconds(500)});
  for (const char* id : {"a", "b", "c"}) g.Attach(id);
  REQUIRE(g.Begin(Version(2)).ok());
  for (const char* id : {"a", "b", "c"}) g.Says(id, Version(1), true);
  g.course.Written(g.Now());
  g.Says("a", Version(2));
  g.now += milliseconds(2);
  g.Says("b", Version(2));
  g.Pass(milliseconds(498));
  REQUIRE(g.course.status().phase == Phase::kIdle);
  CHECK(g.course.status().last.late == 1);
  CHECK(g.course.status().last.spread_seconds == Approx(0.002));
  CHECK(g.course.status().last.message == "late: c");
}

TEST_CASE("one that cannot commit for now is late at once, and its group keeps it") {
  const bool standing = GENERATE(true, false);
  const std::string why = "it cannot commit version 2: no space";
  Group g({.standing = standing});
  g.Open();
  g.Decide();
  g.course.Written(g.Now());
  g.Says("a", Version(2));
  g.Says("b", Version(1), true, why);
  REQUIRE(g.course.status().phase == Phase::kIdle);
  CHECK(g.course.status().last.committed);
  CHECK(g.course.status().last.message == "late: b (" + why + ")");
  g.Says("b", Version(1), true, why);
  CHECK_FALSE(g.course.over());
  CHECK(g.course.word().commit == Version(2));
  g.Says("b", Version(2));
  CHECK(g.course.over() == !standing);
}

TEST_CASE("a rollback aborts a round for what was rolled back, and so does a new lineage") {
  const bool rollback = GENERATE(true, false);
  Group g;
  g.Open();
  g.course.Published(Version(3), g.Now());
  CHECK(g.course.status().phase == Phase::kPreparing);  // a newer version does not
  g.course.Published(rollback ? Version(1, 2) : Version(1, 1, kOther), g.Now());
  CHECK(g.course.status().phase == Phase::kIdle);
  CHECK_FALSE(g.course.status().last.committed);
  CHECK(g.course.status().last.message.find("meanwhile") != std::string::npos);
}

TEST_CASE("a round that runs is joined for the same state, and refused for another") {
  Group g;
  g.Open();
  const uint64_t round = g.course.status().round;
  CHECK(g.Begin(Version(2)).ok());
  CHECK(g.course.status().round == round);
  CHECK(g.Begin(Version(3)).code() == StatusCode::kFailedPrecondition);
  g.Decide();
  CHECK(g.Begin(Version(2)).code() == StatusCode::kFailedPrecondition);
  g.course.Written(g.Now());
  CHECK(g.Begin(Version(2)).ok());
  CHECK(g.course.status().round == round);
  // The next round does not wait for whoever has yet to commit.
  g.Says("a", Version(2));
  CHECK(g.Begin(Version(3)).ok());
  CHECK(g.course.status().round > round);
  CHECK(g.course.status().last.late == 1);
  CHECK(g.course.word().commit == Version(2));
  CHECK(g.course.word().prepare == Version(3));
}

TEST_CASE("with every version a round, the newest is begun when the one before has ended") {
  Group g({.every_version = true});
  g.Attach("a");
  g.Attach("b");
  g.course.Published(Version(2), g.Now());
  REQUIRE(g.course.status().target == Version(2));
  g.course.Published(Version(3), g.Now());
  g.course.Published(Version(4), g.Now());
  CHECK(g.course.status().target == Version(2));
  g.Decide();
  g.course.Written(g.Now());
  g.Says("a", Version(2));
  g.Says("b", Version(2));
  CHECK(g.course.NextTick(g.Now()) <= g.Now());
  g.Pass(milliseconds(0));
  CHECK(g.course.status().target == Version(4));
}

TEST_CASE("with every version a round, one that was aborted is tried again, ever less often") {
  Group g({.every_version = true, .timeout = seconds(100)});
  g.Attach("a");
  g.Attach("b");
  g.course.Published(Version(2), g.Now());
  milliseconds pause = GroupCourse::kFirstRetry;
  for (int i = 0; i < 8; ++i) {
    REQUIRE(g.course.status().phase == Phase::kPreparing);
    g.Says("a", Version(1), false, "it is paused");
    REQUIRE(g.course.status().phase == Phase::kIdle);
    CHECK(g.course.NextTick(g.Now()) == g.Now() + pause);
    g.Pass(pause - milliseconds(1));
    CHECK(g.course.status().phase == Phase::kIdle);
    g.Pass(milliseconds(1));
    pause = std::min<milliseconds>(2 * pause, GroupCourse::kLongestRetry);
  }
  g.Says("a", Version(1), false, "it is paused");
  g.course.Published(Version(3), g.Now());  // a new version is tried at once
  CHECK(g.course.status().target == Version(3));
}

TEST_CASE("without whoever is away for long, if the options say so") {
  Group g({.members = {"a", "b"}, .skip_absent = true});
  g.Attach("a");
  REQUIRE(g.Begin(Version(2)).ok());
  g.Says("a", Version(1), true);
  CHECK(g.course.status().phase == Phase::kPreparing);
  CHECK(g.course.NextTick(g.Now()) == g.At(GroupCourse::kAbsent));
  g.Pass(GroupCourse::kAbsent - milliseconds(1));
  CHECK(g.course.status().phase == Phase::kPreparing);
  g.Pass(milliseconds(1));
  REQUIRE(g.course.status().phase == Phase::kDeciding);
  g.course.Written(g.Now());
  g.Says("a", Version(2));
  CHECK(g.course.status().last.committed);
  CHECK(g.course.status().last.message == "late: b");
  // With nobody there, nothing is decided.
  Group nobody({.members = {"a"}, .skip_absent = true, .timeout = seconds(60)});
  REQUIRE(nobody.Begin(Version(2)).ok());
  nobody.Pass(seconds(59));
  CHECK(nobody.course.status().phase == Phase::kPreparing);
  CHECK(nobody.course.NextTick(nobody.Now()) > nobody.Now());
}

TEST_CASE("an orchestrator's group is over when all have committed, or have stayed") {
  Group g({.standing = false});
  g.Open();
  CHECK_FALSE(g.course.over());
  g.Says("a", Version(1), false, "it is paused");
  CHECK(g.course.over());
  REQUIRE(g.Begin(Version(2)).ok());
  g.Decide();
  g.course.Written(g.Now());
  g.Says("a", Version(2));
  g.course.Detached("b", g.Now());
  REQUIRE(g.course.status().phase == Phase::kIdle);
  CHECK_FALSE(g.course.over());  // b is still to come
  SECTION("it comes back and follows") { g.Says("b", Version(2)); }
  SECTION("it cannot get there any more") {
    g.Says("b", Version(1), false, "no sender has version 2 any more");
  }
  CHECK(g.course.over());
}

// Every member is told one word at a time, so it is enough that words never contradict each other:
// what is decided stays decided until something later is, and is only ever what all had prepared.
TEST_CASE(
    "in any order of events a decision is of what all had prepared, and is never taken back") {
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    Group g({.members = {"a", "b", "c"},
             .every_version = random() % 2 == 0,
             .skip_absent = random() % 4 == 0,
             .timeout = milliseconds(200)});
    std::map<std::string, Identity> committed;
    uint64_t version = 1, epoch = 1;
    GroupWord before = g.course.word();
    for (int step = 0; step < 200; ++step) {
      const std::string id(1, static_cast<char>('a' + random() % 3));
      const GroupWord word = g.course.word();
      const Phase phase = g.course.status().phase;
      switch (random() % 9) {
        case 0:
          g.course.Published(Version(++version, epoch), g.Now());
          break;
        case 1:
          if (random() % 4 == 0) g.course.Published(Version(version, ++epoch), g.Now());
          break;
        case 2:
          (void)g.Begin(Version(version, epoch));
          break;
        case 3:
          g.course.Detached(id, g.Now());
          break;
        case 4:
          if (!word.commit.empty()) committed[id] = word.commit;
          g.Says(id, committed[id]);
          break;
        case 5:
        case 6:
          g.Says(id, committed[id], !word.prepare.empty(), random() % 20 == 0 ? "no" : "",
                 word.round);
          break;
        case 7:
          g.Pass(milliseconds(random() % 100));
          break;
        default:
          if (const auto decision = g.course.to_write()) {
            CHECK(decision->state == word.prepare);
            if (random() % 8 == 0) {
              g.course.NotWritten(absl::InternalError("disk"), g.Now());
            } else {
              g.course.Written(g.Now());
              CHECK(g.course.word().commit == decision->state);
            }
          }
      }
      const GroupWord after = g.course.word();
      // A decision changes only to what was open just before.
      if (!(after.commit == before.commit)) CHECK(after.commit == before.prepare);
      if (phase != Phase::kDeciding && g.course.status().phase == Phase::kDeciding) {
        size_t prepared = 0;
        for (const char* m : {"a", "b", "c"})
          prepared += g.course.roster().Find(m)->state == State::kPrepared;
        CHECK(prepared >= (g.course.traits().skip_absent ? 1u : 3u));
      }
      before = after;
    }
  }
}

}  // namespace
}  // namespace deltawire::sender::group_course_test
