// What a Replica does as a member of a group: it makes a state ready and waits for the word.
#include "common/base/human.h"
#include "common/base/log.h"
#include "receiver/replica.h"

namespace deltawire::receiver {

GroupMember::Situation Replica::MemberSituation() const {
  return {.committed = gate_.committed(),
          .last_whole = last_whole_,
          .paused = paused_ && !gate_.half_updated(),
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

void Replica::CommitPrepared() {
  const PreparedRound prepared = *std::exchange(prepared_, std::nullopt);
  const Identity target = member_.prepared();
  pull_.BeginCommit(prepared.round, target);
  SetPauseEnds(paused_, false);
  gate_.SetLimit(BufferGate::Limit::kNone);
  using_buffer_ = true;
  mu_.unlock();
  const Status ended =
      EndRound(*prepared.round, prepared.began, Drive(*prepared.round, /*hold=*/false));
  // Chunks that came out wrong were pulled for.
  links_.PullEnded(fault_);
  mu_.lock();
  if (ended.ok()) member_.Committed();
  member_.NotPrepared();
  // If it failed, the group's state is pulled as by a member that comes back.
  const bool paused = absl::IsCancelled(ended) && (paused_ || stopping_);
  if (!ended.ok() && !paused) follower_.PullEnded(ended, true, SteadyClock::now());
  NoteEnd(ended, target);
  mu_.unlock();
  SendAll();
  TellNews();
  if (ended.ok()) {
    LeaveDelta();
    gate_.MakeReady();
  }
  mu_.lock();
}

void Replica::NoteForGroup(const Status& pulled, const Identity& target, bool hold) {
  if (pulled.ok()) {
    if (!hold) member_.Committed();
    return;
  }
  if (hold && CannotPrepare()) return member_.Refuse(std::string(MessageOf(pulled)));
  // `fault_` is kCancelled when no byte that the sender sent was at fault, as when it refused to
  // open the pull.
  member_.Failed(target, pulled, absl::IsCancelled(fault_));
}

}  // namespace deltawire::receiver
