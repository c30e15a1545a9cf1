// The order in which a replica's driving thread does what is due.
#include "receiver/replica/next_step.h"

#include <catch2/catch.hpp>

namespace deltawire::receiver::next_step_test {
namespace {

using Do = GroupMember::Do;
using Task = Upkeep::Task;

}  // namespace

TEST_CASE("next step: without its agents a replica refuses callers, and keeps the files up") {
  CHECK(NextStep({}) == Step::kRest);
  CHECK(NextStep({.pull = true}) == Step::kRest);
  CHECK(NextStep({.wants_pull = true, .upkeep = Task::kCheck}) == Step::kRefuseCallers);
  CHECK(NextStep({.wants_check = true, .upkeep = Task::kCheck}) == Step::kUpkeep);
  CHECK(NextStep({.wants_check = true}) == Step::kCheckSlice);
  CHECK_FALSE(IsAtRest({}));
}

TEST_CASE("next step: agents are asked for a description after a pause, or for a caller at once") {
  CHECK(NextStep({.attached = true, .describe = true}) == Step::kRest);
  CHECK(NextStep({.attached = true, .wants_check = true, .describe = true}) == Step::kCheckSlice);
  CHECK(NextStep({.attached = true, .describe = true, .describe_now = true}) == Step::kDescribe);
  CHECK(NextStep({.attached = true, .wants_pull = true, .describe = true}) == Step::kDescribe);
  CHECK_FALSE(IsAtRest({.attached = true, .describe = true}));
}

TEST_CASE(
    "next step: a caller's pull comes first, but a check goes on by a slice after each pull") {
  DueState due{.attached = true, .wants_pull = true, .pull = true, .upkeep = Task::kCheck};
  CHECK(NextStep(due) == Step::kPullForCallers);
  due.wants_check = true;
  CHECK(NextStep(due) == Step::kPullForCallers);
  due.slice_due = true;
  CHECK(NextStep(due) == Step::kCheckSlice);
  CHECK_FALSE(IsAtRest(due));
  due.wants_check = false;
  CHECK(NextStep(due) == Step::kPullForCallers);
  due.wants_pull = false;
  CHECK(NextStep(due) == Step::kPull);
}

TEST_CASE("next step: what was prepared is committed or discarded before the next pull") {
  CHECK(NextStep({.attached = true, .group = Do::kDrop, .pull = true}) == Step::kDiscardPrepared);
  CHECK(NextStep({.attached = true, .group = Do::kCommit, .pull = true}) == Step::kCommitPrepared);
  CHECK(NextStep({.attached = true, .group = Do::kPrepare, .pull = true}) == Step::kPull);
  CHECK(NextStep({.attached = true, .lost = true, .pull = true}) == Step::kDiscardUnwritten);
  CHECK_FALSE(IsAtRest({.attached = true, .group = Do::kCommit}));
}

TEST_CASE("next step: a version that the trainer writes waits for the hidden file") {
  DueState due{.attached = true, .pull = true, .unwritten = true, .may_catch_up = true};
  CHECK(NextStep(due) == Step::kCatchUp);
  due.unwritten = false;
  CHECK(NextStep(due) == Step::kPull);
}

TEST_CASE("next step: at rest comes upkeep, then a check") {
  CHECK(IsAtRest({.attached = true, .group = Do::kHold}));
  CHECK(NextStep({.attached = true, .group = Do::kHold}) == Step::kRest);
  CHECK(NextStep({.attached = true, .wants_check = true, .upkeep = Task::kScrub}) == Step::kUpkeep);
  CHECK(NextStep({.attached = true, .wants_check = true}) == Step::kCheckSlice);
}

}  // namespace deltawire::receiver::next_step_test
