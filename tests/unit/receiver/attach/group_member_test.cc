// What a member of a group does and answers, for every word and whatever it holds.
#include "receiver/attach/group_member.h"

#include <catch2/catch.hpp>

namespace deltawire::receiver::group_member_test {
namespace {

using Do = GroupMember::Do;

constexpr Hash128 kLineage{1, 2};
Identity Version(uint64_t version, uint64_t epoch = 1) {
  return {kLineage, {epoch, version}, 1000 * epoch + version, 7};
}
GroupMember::Situation Holding(const Identity& id) { return {.committed = id, .last_whole = id}; }
GroupWord Word(uint64_t round, const Identity& prepare, const Identity& commit) {
  return {.name = "g", .round = round, .prepare = prepare, .commit = commit};
}
const Identity kNone;

TEST_CASE("who is in no group follows the newest version") {
  GroupMember m;
  CHECK(m.Next(Holding(Version(1))).what == Do::kFollow);
  CHECK(m.report(Holding(Version(1))) == GroupReport{});
  CHECK_FALSE(m.bound());
}

TEST_CASE("a member stays where it is until its group says otherwise") {
  GroupMember m;
  m.SetWord(Word(0, kNone, kNone));
  CHECK(m.Next(Holding(Version(1))).what == Do::kHold);
  CHECK(m.Next(Holding(kNone)).what == Do::kHold);
  m.SetWord(Word(3, kNone, Version(1)));
  CHECK(m.Next(Holding(Version(1))).what == Do::kHold);
  CHECK(m.Next(Holding(Version(2))).what == Do::kHold);  // never back
  m.SetWord({});
  CHECK(m.Next(Holding(Version(1))).what == Do::kFollow);
}

TEST_CASE("prepare, answer, and commit on the word") {
  GroupMember m;
  const auto at1 = Holding(Version(1));
  m.SetWord(Word(4, Version(2), Version(1)));
  CHECK(m.Next(at1).what == Do::kPrepare);
  CHECK(m.Next(at1).goal == Version(2));
  CHECK(m.report(at1) == GroupReport{.round = 4});
  m.NotePrepared(Version(2));
  CHECK(m.Next(at1).what == Do::kHold);
  CHECK(m.report(at1) == GroupReport{.round = 4, .prepared = true});
  m.SetWord(Word(4, kNone, Version(2)));
  CHECK(m.Next(at1).what == Do::kCommit);
  CHECK(m.Next(at1).goal == Version(2));
  m.NoteDiscarded();
  const auto at2 = Holding(Version(2));
  CHECK(m.Next(at2).what == Do::kHold);
  CHECK(m.report(at2) == GroupReport{.round = 4});
}

TEST_CASE("what came while it was written is kept until the group asks for it or something else") {
  GroupMember m;
  const auto at1 = Holding(Version(1));
  CHECK_FALSE(m.Next(at1).idle);  // in no group
  m.SetWord(Word(4, kNone, Version(1)));
  CHECK(m.Next(at1).idle);
  CHECK_FALSE(m.Next({.committed = Version(1), .last_whole = Version(1), .paused = true}).idle);
  m.NotePrepared(Version(2), true);
  CHECK(m.Next(at1).what == Do::kHold);
  CHECK_FALSE(m.Next(at1).idle);
  CHECK(m.report(at1) == GroupReport{.round = 4});
  m.SetWord(Word(4, kNone, Version(1)));
  CHECK(m.Next(at1).what == Do::kHold);
  SECTION("it asks for it, and commits") {
    m.SetWord(Word(5, Version(2), Version(1)));
    CHECK(m.report(at1) == GroupReport{.round = 5, .prepared = true});
    m.SetWord(Word(5, kNone, Version(2)));
    CHECK(m.Next(at1).what == Do::kCommit);
  }
  SECTION("it asks for it, and does not") {
    m.SetWord(Word(5, Version(2), Version(1)));
    CHECK(m.Next(at1).what == Do::kHold);
    m.SetWord(Word(5, kNone, Version(1)));
    CHECK(m.Next(at1).what == Do::kDrop);
  }
  SECTION("it asks for something else") {
    m.SetWord(Word(5, Version(3), Version(1)));
    CHECK(m.Next(at1).what == Do::kDrop);
  }
  SECTION("there is no group any more") {
    m.SetWord({});
    CHECK(m.Next(at1).what == Do::kDrop);
  }
  SECTION("it has come while its round was open") {
    m.SetWord(Word(5, Version(2), Version(1)));
    m.NotePrepared(Version(2), true);
    CHECK(m.report(at1).prepared);
    m.SetWord(Word(5, kNone, Version(1)));
    CHECK(m.Next(at1).what == Do::kDrop);
  }
}

TEST_CASE("an abort, another round and a lost word all drop what is prepared") {
  GroupMember m;
  const auto at1 = Holding(Version(1));
  m.SetWord(Word(4, Version(2), Version(1)));
  m.NotePrepared(Version(2));
  SECTION("aborted") { m.SetWord(Word(4, kNone, Version(1))); }
  SECTION("the next round is for another version") { m.SetWord(Word(5, Version(3), Version(1))); }
  SECTION("it is no member any more") { m.SetWord({}); }
  SECTION("the group has gone on without it") { m.SetWord(Word(6, kNone, Version(3))); }
  CHECK(m.Next(at1).what == Do::kDrop);
}

TEST_CASE("another round for the same version keeps what is prepared") {
  GroupMember m;
  m.SetWord(Word(4, Version(2), kNone));
  m.NotePrepared(Version(2));
  m.SetWord(Word(5, Version(2), kNone));
  CHECK(m.Next(Holding(Version(1))).what == Do::kHold);
  CHECK(m.report(Holding(Version(1))) == GroupReport{.round = 5, .prepared = true});
}

TEST_CASE("who comes back goes to what was decided, prepared or not, before it prepares more") {
  GroupMember m;
  m.SetWord(Word(9, Version(6), Version(5)));
  const auto choice = m.Next(Holding(Version(2)));
  CHECK(choice.what == Do::kPull);
  CHECK(choice.goal == Version(5));
  CHECK(m.Next(Holding(Version(5))).what == Do::kPrepare);
  CHECK(m.Next(Holding(kNone)).goal == Version(5));
  // A rollback that the group decided on is later than what is held.
  m.SetWord(Word(10, kNone, Version(4, 2)));
  CHECK(m.Next(Holding(Version(5))).goal == Version(4, 2));
}

TEST_CASE("who holds the state already has prepared it") {
  GroupMember m;
  m.SetWord(Word(4, Version(2), kNone));
  CHECK(m.Next(Holding(Version(2))).what == Do::kHold);
  CHECK(m.report(Holding(Version(2))).prepared);
  CHECK(m.report(Holding(Version(3))).refusal == "it holds version 3, which is later");
}

TEST_CASE("a paused member prepares and commits nothing, says so, and goes on when it is resumed") {
  GroupMember m;
  auto s = Holding(Version(1));
  m.SetWord(Word(4, Version(2), Version(1)));
  m.NotePrepared(Version(2));
  s.paused = true;
  CHECK(m.Next(s).what == Do::kDrop);
  m.NoteDiscarded();
  CHECK(m.Next(s).what == Do::kHold);
  CHECK(m.report(s) == GroupReport{.round = 4, .prepared = false, .refusal = "it is paused"});
  m.SetWord(Word(4, kNone, Version(2)));  // decided before that was heard
  CHECK(m.Next(s).what == Do::kHold);
  CHECK(m.report(s).refusal == "it is paused");
  s.paused = false;
  CHECK(m.Next(s).what == Do::kPull);
  CHECK(m.Next(s).goal == Version(2));
}

TEST_CASE("what cannot be prepared is refused for that round, and tried again in the next") {
  GroupMember m;
  const auto at1 = Holding(Version(1));
  m.SetWord(Word(4, Version(2), kNone));
  m.Refuse("one buffer");
  CHECK(m.Next(at1).what == Do::kHold);
  CHECK(m.report(at1) == GroupReport{.round = 4, .prepared = false, .refusal = "one buffer"});
  m.SetWord(Word(5, Version(2), kNone));
  CHECK(m.Next(at1).what == Do::kPrepare);
  CHECK(m.report(at1).refusal.empty());
}

TEST_CASE("a state that the sender no longer has is refused after some attempts") {
  GroupMember m;
  const auto at1 = Holding(Version(1));
  const Status gone = absl::AbortedError("not kept any more");
  m.SetWord(Word(4, Version(2), kNone));
  for (int i = 0; i < 2; ++i) {
    m.NoteFailure(Version(2), gone, true);
    CHECK(m.Next(at1).what == Do::kPrepare);
  }
  SECTION("another failure between starts the count anew") {
    m.NoteFailure(Version(2), absl::UnavailableError("no route"), true);
    m.NoteFailure(Version(2), gone, true);
    CHECK(m.Next(at1).what == Do::kPrepare);
  }
  SECTION("three in a row") {
    m.NoteFailure(Version(2), gone, true);
    CHECK(m.Next(at1).what == Do::kHold);
    CHECK(m.report(at1).refusal == "not kept any more");
  }
  SECTION("a pull that is cut resumes") {
    m.NoteFailure(Version(2), gone, false);
    CHECK(m.Next(at1).what == Do::kPrepare);
  }
}

TEST_CASE("a decided state that is not to be had does not keep a member from the next round") {
  GroupMember m;
  const auto at1 = Holding(Version(1));
  m.SetWord(Word(4, kNone, Version(2)));
  for (int i = 0; i < 3; ++i) m.NoteFailure(Version(2), absl::AbortedError("gone"), true);
  CHECK(m.Next(at1).what == Do::kHold);
  CHECK(m.Next(at1).why.find("no sender has") != std::string::npos);
  CHECK(m.report(at1).refusal == "no sender has version 2 any more");
  // Also in rounds that are aborted and tried again.
  for (uint64_t round = 5; round < 8; ++round) {
    m.SetWord(Word(round, Version(3), Version(2)));
    CHECK(m.Next(at1).what == Do::kPrepare);
    m.SetWord(Word(round, kNone, Version(2)));
    CHECK(m.Next(at1).what == Do::kHold);
  }
  // What is decided next may be there.
  m.SetWord(Word(8, kNone, Version(4)));
  CHECK(m.Next(at1).what == Do::kPull);
}

TEST_CASE("who cannot commit says so, and keeps what it has prepared for another attempt") {
  GroupMember m;
  const auto at1 = Holding(Version(1));
  m.SetWord(Word(4, Version(2), Version(1)));
  m.NotePrepared(Version(2));
  m.SetWord(Word(4, kNone, Version(2)));
  m.NoteCommitFailure(absl::ResourceExhaustedError("no space"));
  const std::string why = "it cannot commit version 2: no space";
  CHECK(m.Next(at1).what == Do::kCommit);
  CHECK(m.report(at1) == GroupReport{.round = 4, .prepared = true, .refusal = why});
  // The next round learns it at once, too.
  m.SetWord(Word(5, Version(3), Version(2)));
  CHECK(m.Next(at1).what == Do::kCommit);
  CHECK(m.report(at1) == GroupReport{.round = 5, .prepared = true, .refusal = why});
  SECTION("it commits") { m.NoteCommit(); }
  SECTION("it loses what it had prepared") { m.NoteDiscarded(); }
  CHECK(m.report(at1) == GroupReport{.round = 5});
}

TEST_CASE("who has lost its weights, and can get back neither them nor the group's, prepares") {
  GroupMember m;
  const GroupMember::Situation lost{.committed = {}, .last_whole = Version(1)};
  // The sender's own memory may have lost bytes of a decided version, which heal with the next one.
  const Status gone = GENERATE(absl::AbortedError("gone"), absl::DataLossError("other bytes"));
  m.SetWord(Word(4, Version(3), Version(2)));
  CHECK(m.Next(lost).goal == Version(2));
  for (int i = 0; i < 3; ++i) m.NoteFailure(Version(2), gone, true);
  CHECK(m.Next(lost).goal == Version(1));
  for (int i = 0; i < 3; ++i) m.NoteFailure(Version(1), gone, true);
  CHECK(m.Next(lost).what == Do::kPrepare);
  CHECK(m.Next(lost).goal == Version(3));
}

TEST_CASE("bytes that were lost come back as what they were") {
  GroupMember m;
  GroupMember::Situation s{.committed = Version(2), .last_whole = Version(2), .corrupt = true};
  m.SetWord(Word(4, Version(3), Version(2)));
  m.NotePrepared(Version(3));
  CHECK(m.Next(s).what == Do::kDrop);
  m.NoteDiscarded();
  CHECK(m.Next(s).goal == Version(2));
  s.corrupt = false;
  s.committed = {};  // the file has lost its name
  CHECK(m.Next(s).what == Do::kPull);
  CHECK(m.Next(s).goal == Version(2));
  m.SetWord(Word(4, kNone, kNone));
  CHECK(m.Next(s).goal == Version(2));
}

TEST_CASE("a requested sync brings a member to its group's state") {
  GroupMember m;
  m.SetWord(Word(0, kNone, kNone));
  CHECK(m.SyncGoal(Holding(Version(1))).status().code() == StatusCode::kFailedPrecondition);
  m.SetWord(Word(4, Version(3), Version(2)));
  CHECK(*m.SyncGoal(Holding(Version(1))) == Version(2));
  CHECK(*m.SyncGoal(Holding(kNone)) == Version(2));
  CHECK_FALSE(m.SyncGoal(Holding(Version(3))).ok());
  auto s = Holding(Version(3));
  s.corrupt = true;
  CHECK(*m.SyncGoal(s) == Version(3));
}

}  // namespace
}  // namespace deltawire::receiver::group_member_test
