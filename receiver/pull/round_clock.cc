#include "receiver/pull/round_clock.h"

#include <algorithm>

#include "common/base/human.h"

namespace deltawire::receiver {
namespace {

double SecondsBetween(SteadyClock::time_point from, SteadyClock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

void RoundClock::BeginStep() {
  step_start_ = SteadyClock::now();
  waited_ = 0;
  if (prepared_at_ && held_ == 0) held_ = SecondsSince(*prepared_at_);
}

void RoundClock::EndStep(double RoundTimes::*part) {
  times_.*part += SecondsSince(step_start_) - waited_;
}

void RoundClock::EndFirstTransfer() {
  last_frame_ = SteadyClock::now();
  times_.transfer = SecondsBetween(start_, last_frame_);
}

void RoundClock::MarkPublished(uint64_t bytes) {
  MutexLock lock(mu_);
  published_ = {SteadyClock::now(), bytes};
}

void RoundClock::SetAhead(uint64_t bytes, PullStats& stats) {
  MutexLock lock(mu_);
  // If no event has said so, the version was published by the last frame, since no pull ends before
  // that.
  const Time at = published_ ? std::clamp(published_->at, start_, last_frame_) : last_frame_;
  stats.ahead_bytes = published_ ? std::min(published_->bytes, bytes) : bytes;
  times_.ahead = stats.ahead_seconds = SecondsBetween(start_, at);
  start_ = at;
  times_.transfer = SecondsBetween(start_, last_frame_);
}

void RoundClock::AddTo(PullStats& stats) const {
  stats.transfer_seconds = SecondsBetween(start_, last_frame_);
  stats.apply_seconds = SecondsSince(last_frame_) - held_;
  stats.seconds = SecondsSince(start_) - held_;
}

}  // namespace deltawire::receiver
