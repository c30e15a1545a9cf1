#include "receiver/replica/next_step.h"

namespace deltawire::receiver {
namespace {

Step IdleStep(const DueState& due) {
  if (due.upkeep != Upkeep::Task::kNothing) return Step::kUpkeep;
  return due.wants_check ? Step::kCheckSlice : Step::kRest;
}

}  // namespace

Step NextStep(const DueState& due) {
  if (!due.attached) return due.wants_pull ? Step::kRefuseCallers : IdleStep(due);
  if (due.describe) {
    if (due.describe_now || due.wants_pull) return Step::kDescribe;
    return due.wants_check ? Step::kCheckSlice : Step::kRest;
  }
  if (due.slice_due && due.wants_check) return Step::kCheckSlice;
  if (due.wants_pull) return Step::kPullForCallers;
  if (due.group == GroupMember::Do::kDrop) return Step::kDiscardPrepared;
  if (due.group == GroupMember::Do::kCommit) return Step::kCommitPrepared;
  if (due.lost) return Step::kDiscardUnwritten;
  if (!due.pull) return IdleStep(due);
  // An incoming version can wait until the hidden file is where its deltas begin.
  return due.unwritten && due.may_catch_up ? Step::kCatchUp : Step::kPull;
}

bool IsAtRest(const DueState& due) {
  const bool decided = due.group == GroupMember::Do::kDrop || due.group == GroupMember::Do::kCommit;
  return due.attached && !due.describe && !due.wants_pull && !decided && !due.lost && !due.pull;
}

}  // namespace deltawire::receiver
