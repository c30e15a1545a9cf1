// What a Replica does with a version that the trainer still writes: what has come of it is staged,
// or in the hidden file, and goes again when the version does not come.
#include "common/base/log.h"
#include "receiver/replica.h"

namespace deltawire::receiver {

bool Replica::EarlyIsOver() const { return follower_.GivenUp(early_.parts); }

void Replica::DropEarly(std::unique_lock<Mutex>& lock) {
  pulling_ = true;
  lock.unlock();
  DropEarlyUnless({});
  lock.lock();
  pulling_ = false;
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
  behind_ = buffer_->catches_up();
}

void Replica::EndEarlyPull() {
  std::shared_ptr<PullRound> round;
  {
    std::lock_guard lock(mu_);
    if (round_unwritten_ && !round_published_) round = round_;
  }
  if (round != nullptr) round->Cancel();
}

bool Replica::EarlyPullIsOver() const {
  std::lock_guard lock(mu_);
  if (!round_unwritten_) return false;
  if (agents_.size() > 1) {
    // An agent that is behind the others' incoming version may publish one between first.
    const auto common = follower_.Common();
    const bool overtaken = common && IsLater(common->whole, Situation().held());
    return overtaken || follower_.GivenUp(round_parts_);
  }
  const GroupMember::Choice group = member_.Next(MemberSituation());
  if (gate_.limit() != BufferGate::Limit::kPrepare) return group.what != GroupMember::Do::kFollow;
  const bool asked = group.what == GroupMember::Do::kPrepare && IsOf(round_target_, group.goal);
  return !asked && !(group.what == GroupMember::Do::kHold && group.idle);
}

std::optional<PullRound::Env::Published> Replica::PublishedAt() const {
  std::lock_guard lock(mu_);
  return round_published_;
}

}  // namespace deltawire::receiver
