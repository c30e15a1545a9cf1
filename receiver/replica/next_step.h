// The choice of what a replica's driving thread does next. A pure function of what is due.
#pragma once

#include <cstdint>

#include "receiver/attach/group_member.h"
#include "receiver/replica/upkeep.h"

namespace deltawire::receiver {

/// Everything that is due at one moment.
struct DueState {
  bool attached = false;      ///< to all agents
  bool wants_pull = false;    ///< callers wait for a pull that has not begun
  bool wants_check = false;   ///< callers wait for a check of all chunks
  bool slice_due = false;     ///< a pull has ended since the last slice of such a check
  bool describe = false;      ///< the agents are to be asked before the next pull ...
  bool describe_now = false;  ///< ... and the pause since the last attempt is over
  GroupMember::Do group = GroupMember::Do::kFollow;
  bool lost = false;          ///< an unwritten version of which chunks have come was abandoned
  bool pull = false;          ///< the planner has a target ...
  bool unwritten = false;     ///< ... which the trainer still writes
  bool may_catch_up = false;  ///< the hidden file is behind, and may be brought up
  Upkeep::Task upkeep = Upkeep::Task::kNothing;
};

enum class Step : uint8_t {
  kRest,           ///< nothing is due
  kRefuseCallers,  ///< no agent could serve their pull
  kDescribe,
  kCheckSlice,  ///< of the check that callers wait for
  kPullForCallers,
  kDiscardPrepared,
  kCommitPrepared,
  kDiscardUnwritten,
  kPull,
  kUpkeep,
  kCatchUp,
};

/// A caller's pull comes before the planner's, and both before upkeep. A check that callers wait
/// for goes on by a slice after each pull, or it might never end.
Step NextStep(const DueState& due);
/// Whether the agents are attached and described, and no pull, nor the end of one, is due.
bool IsAtRest(const DueState& due);

}  // namespace deltawire::receiver
