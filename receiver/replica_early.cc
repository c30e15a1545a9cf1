// What a Replica does with a version that the trainer still writes: what has come of it is staged,
// or in the hidden file, and goes again when the version does not come.
#include "common/base/log.h"
#include "receiver/replica.h"

namespace deltawire::receiver {

bool Replica::EarlyIsOver() const { return follower_.GivenUp(early_.parts); }

void Replica::DropEarly() {
  using_buffer_ = true;
  mu_.unlock();
  DropEarlyUnless({});
  mu_.lock();
  using_buffer_ = false;
  cv_.notify_all();
}

void Replica::DropEarlyUnless(const Identity& next) {
  const Identity& early = early_.whole;
  if (early.empty() || IsOf(early, next)) return;
  LogInfo("model {}: what came of {} before it was published is dropped {}", options_.model,
          ToString(early), ToString(TraceOf(early)));
  early_ = {};
  sink_->Discard();
  buffer_->Discard();
  upkeep_.Look(*buffer_);
}

void Replica::EndEarlyPull() {
  std::shared_ptr<PullRound> round;
  {
    MutexLock lock(mu_);
    if (pull_.state() == RunningPull::State::kUnwritten) round = pull_.round();
  }
  if (round != nullptr) round->Cancel();
}

bool Replica::EarlyPullIsOver() const {
  MutexLock lock(mu_);
  if (!pull_.early()) return false;
  if (agents_.size() > 1) {
    // An agent that is behind the others' incoming version may publish one between first.
    const auto common = follower_.Common();
    const bool overtaken = common && IsLater(common->whole, Situation().held());
    return overtaken || follower_.GivenUp(pull_.parts());
  }
  const GroupMember::Choice group = member_.Next(MemberSituation());
  if (gate_.limit() != BufferGate::Limit::kPrepare) return group.what != GroupMember::Do::kFollow;
  const bool asked = group.what == GroupMember::Do::kPrepare && IsOf(pull_.target(), group.goal);
  return !asked && !(group.what == GroupMember::Do::kHold && group.idle);
}

}  // namespace deltawire::receiver
