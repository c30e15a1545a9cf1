// The choice of what a replica does next, from events of agents and a group.
#include "receiver/replica/planner.h"

#include <catch2/catch.hpp>
#include <memory>

#include "tests/support/temp_dir.h"

namespace deltawire::receiver::planner_test {
namespace {

using Do = GroupMember::Do;

constexpr Hash128 kLineage{3, 4};

Identity Version(uint64_t version, uint64_t root = 9) {
  return {.lineage = kLineage, .id = {1, version}, .root = root, .attempt = version};
}

SenderEvent Event(const Identity& newest, const Identity& incoming = {}) {
  SenderEvent event;
  event.newest.identity = newest;
  event.incoming.version = incoming;
  return event;
}

/// A planner for a receiver that holds nothing yet.
struct PlannerRig {
  explicit PlannerRig(const std::vector<std::string>& agents = {"s0"})
      : home(*BufferHome::Open({.model = "m", .directory = dir.path()}, pool, rates)),
        planner(
            agents, {},
            {.home = *home, .gate = gate, .run = run, .requests = requests, .corrupt = corrupt}) {}
  Planner::Plan Next(const std::vector<Identity>& unwritten = {}) const {
    return planner.Next(unwritten, SteadyClock::now());
  }

  TempDir dir;
  ThreadPool pool{1};
  CoderRates rates;
  std::unique_ptr<BufferHome> home;
  BufferGate gate{{.model = "m"}};
  RunState run{gate, true};
  CommitLog commits;
  RequestQueue requests{commits};
  CorruptChunks corrupt;
  Planner planner;
};

}  // namespace

TEST_CASE("planner: a version that an agent has is pulled, unless paused or not attached") {
  PlannerRig rig;
  CHECK_FALSE(rig.Next().attached);
  rig.planner.NoteEvent(0, Event(Version(1)));
  REQUIRE(rig.Next().choice.pull);
  CHECK(rig.Next().choice.target.whole == Version(1));
  CHECK(rig.planner.WantsPull(false));
  rig.run.SetPaused(true);
  CHECK_FALSE(rig.Next().choice.pull);
  CHECK_FALSE(rig.planner.WantsPull(true));
  CHECK((*rig.planner.SyncTarget("m", false)).whole == Version(1));  // a caller asks for it
  rig.run.SetPaused(false);
  CHECK(rig.planner.NoteEnded(0));
  CHECK_FALSE(rig.Next().attached);
  CHECK_FALSE(rig.planner.NoteEnded(0));
}

TEST_CASE("planner: a pull that failed is tried again after a pause") {
  PlannerRig rig;
  rig.planner.NoteEvent(0, Event(Version(1)));
  const Follower::Target target = rig.Next().choice.target;
  rig.planner.NotePull(target, {.status = absl::UnavailableError("the stream broke")});
  const Follower::Choice later = rig.Next().choice;
  CHECK_FALSE(later.pull);
  CHECK(later.again > SteadyClock::now());
  // One that a pause ended has not failed.
  PlannerRig other;
  other.planner.NoteEvent(0, Event(Version(1)));
  other.planner.NotePull(target, {.status = absl::CancelledError("paused"), .paused = true});
  CHECK(other.Next().choice.pull);
}

TEST_CASE("planner: a version is named once, also when it was incoming before") {
  PlannerRig rig;
  const Identity unwritten = Version(1, 0);
  auto change = rig.planner.NoteEvent(0, Event({}, unwritten));
  CHECK(change.named == std::vector<Identity>{unwritten});
  CHECK(change.incoming);
  CHECK(change.all_attached);
  change = rig.planner.NoteEvent(0, Event({}, unwritten));
  CHECK(change.named.empty());
  CHECK_FALSE(change.incoming);
  change = rig.planner.NoteEvent(0, Event(Version(1)));
  CHECK(change.named.empty());
  CHECK(change.incoming);
  CHECK(rig.planner.NoteEvent(0, Event(Version(2))).named == std::vector<Identity>{Version(2)});
}

TEST_CASE("planner: what has come of a version that the agent abandons is lost") {
  PlannerRig rig;
  const Identity unwritten = Version(1, 0);
  rig.planner.NoteEvent(0, Event({}, unwritten));
  CHECK_FALSE(rig.Next({unwritten}).lost);
  rig.planner.NoteEvent(0, Event({}));
  CHECK(rig.Next({unwritten}).lost);
}

TEST_CASE("planner: a member prepares what its group asks for, and drops it in a pause") {
  PlannerRig rig;
  SenderEvent event = Event(Version(2));
  event.group = {.name = "g", .round = 1, .prepare = Version(1), .commit = {}};
  rig.planner.NoteEvent(0, event);
  REQUIRE(rig.Next().what == Do::kPrepare);
  const Follower::Target target = rig.Next().choice.target;
  CHECK(target.whole == Version(1));
  CHECK(target.exact);
  CHECK_FALSE(rig.planner.report().prepared);
  rig.planner.NotePrepared(target.whole, false);
  rig.planner.NotePull(target, {.status = absl::OkStatus(), .hold = true});
  CHECK(rig.Next().what == Do::kHold);
  CHECK(rig.planner.report().prepared);
  event.group.prepare = {};
  event.group.commit = Version(1);
  rig.planner.NoteEvent(0, event);
  CHECK(rig.Next().what == Do::kCommit);
  CHECK(rig.planner.SyncTarget("m", false)->whole == Version(1));
  CHECK_FALSE(rig.planner.NeedsNewest());
  rig.run.SetPaused(true);
  CHECK(rig.Next().what == Do::kDrop);
  rig.planner.NoteDiscarded();
  CHECK(rig.planner.known().prepared.empty());
}

TEST_CASE("planner: of several agents the whole is known when all are attached") {
  PlannerRig rig({"s0", "s1"});
  CHECK_FALSE(rig.planner.NoteEvent(0, Event(Version(1))).all_attached);
  CHECK(rig.planner.NeedsNewest());
  CHECK_FALSE(rig.planner.known().newest);
  SenderEvent second = Event({.lineage = {5, 6}, .id = {1, 1}, .root = 1, .attempt = 1});
  second.newest.delta_bytes = 70;
  CHECK(rig.planner.NoteEvent(1, second).all_attached);
  const Planner::Known known = rig.planner.known();
  REQUIRE(known.newest);
  CHECK(known.newest->root == 10);
  CHECK(known.delta_bytes == 70);
  CHECK(known.agents[0].newest == Version(1));
  // A later state that a pull's end named, and not an earlier one.
  rig.planner.NotePart(0, Version(2));
  rig.planner.NotePart(0, Version(1));
  CHECK(rig.planner.known().agents[0].newest == Version(2));
}

}  // namespace deltawire::receiver::planner_test
