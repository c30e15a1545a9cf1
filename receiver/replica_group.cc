// What a Replica does as a member of a group: it makes a state ready and waits for the word.
#include "common/base/human.h"
#include "common/base/log.h"
#include "receiver/replica.h"

namespace deltawire::receiver {

GroupMember::Situation Replica::MemberSituation() const {
  return {.committed = status_.committed,
          .last_whole = last_whole_,
          .paused = paused_ && !half_updated_,
          .suspects = !suspects_.empty()};
}

Replica::Plan Replica::NextPlan(SteadyClock::time_point now) const {
  GroupMember::Choice group = member_.Next(MemberSituation());
  Plan plan{.what = group.what, .choice = {}};
  switch (group.what) {
    case GroupMember::Do::kFollow:
      plan.choice = follower_.Next(Situation(), now);
      break;
    case GroupMember::Do::kPrepare:
    case GroupMember::Do::kPull:
      if (follower_.attached()) plan.choice = follower_.Towards(group.goal, now);
      break;
    case GroupMember::Do::kHold:
      if (group.idle) plan.choice = follower_.Ahead(Situation(), now);
      if (plan.choice.pull) plan.what = GroupMember::Do::kPrepare;
      plan.choice.why = std::move(group.why);
      break;
    case GroupMember::Do::kCommit:
    case GroupMember::Do::kDrop:
      plan.choice.why = std::move(group.why);
      break;
  }
  return plan;
}

void Replica::DropPrepared() {
  if (!prepared_) return;
  // What came stays in the buffer, and staged, as after a pull that broke off.
  LogInfo("model {}: {} was prepared, and is not committed {}", options_.model,
          ToString(member_.prepared()), ToString(TraceOf(member_.prepared())));
  prepared_.reset();
  member_.NotPrepared();
  cv_.notify_all();
}

void Replica::CommitPrepared(std::unique_lock<Mutex>& lock) {
  const PreparedRound prepared = *std::exchange(prepared_, std::nullopt);
  const Identity target = member_.prepared();
  round_ = prepared.round;
  round_target_ = target;
  round_incoming_ = round_unwritten_ = false;
  round_requested_ = false;
  holding_ = cannot_hold_ = false;
  pulling_ = true;
  lock.unlock();
  const Status ended =
      EndRound(*prepared.round, prepared.began, Drive(*prepared.round, /*hold=*/false));
  // Chunks that came out wrong were pulled for.
  if (agents_.size() > 1 && !ended.ok()) fault_ = absl::CancelledError("one of several");
  for (const AgentLink& agent : agents_) agent.upstream->PullEnded(fault_);
  lock.lock();
  if (ended.ok()) member_.Committed();
  member_.NotPrepared();
  // If it failed, the group's state is pulled as by a member that comes back.
  const bool paused = absl::IsCancelled(ended) && (paused_ || stopping_);
  if (!ended.ok() && !paused) follower_.PullEnded(ended, true, SteadyClock::now());
  NoteEnd(ended, target);
  lock.unlock();
  SendAll();
  TellNews();
  if (ended.ok()) {
    LeaveDelta();
    HandOver();
  }
  lock.lock();
}

void Replica::NoteForGroup(const Status& pulled, const Identity& target, bool hold) {
  if (pulled.ok()) {
    if (!hold) member_.Committed();
    return;
  }
  if (hold && cannot_hold_) return member_.Refuse(std::string(MessageOf(pulled)));
  // `fault_` is kCancelled when no byte that the sender sent was at fault, as when it refused to
  // open the pull.
  member_.Failed(target, pulled, absl::IsCancelled(fault_));
}

Status Replica::TouchForGroup() {
  const bool named = !buffer_->updating() && !buffer_->begun();
  const bool fresh = !buffer_->lease_problem().empty() && !options_.unsafe_in_place;
  if (buffer_->buffers() == 2 || !named || fresh) return absl::OkStatus();
  if (options_.copy_for_reader) return buffer_->BeginUpdateInFreshFile();
  cannot_hold_ = true;
  return Errorf(
      StatusCode::kFailedPrecondition,
      "model \"{}\": it cannot be made ready beside the one file of weights, since chunks "
      "come whole or its delta exceeds the staging bound; use buffers = 2, "
      "on-busy-reader = copy or a larger staging",
      options_.model);
}

}  // namespace deltawire::receiver
