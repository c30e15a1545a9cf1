#include "receiver/replica/run_state.h"

namespace deltawire::receiver {

RunState::State RunState::state() const {
  MutexLock lock(mu_);
  return state_;
}

void RunState::Stop() {
  MutexLock lock(mu_);
  state_ = State::kStopped;
}

bool RunState::SetPaused(bool paused) {
  MutexLock lock(mu_);
  if (state_ == State::kStopped) return false;
  state_ = paused ? State::kPaused : State::kRunning;
  SetYielding();
  // No version is committed while the only weight file is half updated.
  return paused && use_ != Use::kRequest && !gate_.version().committed().empty();
}

bool RunState::settled() const {
  MutexLock lock(mu_);
  if (state_ == State::kStopped) return true;
  const bool goes_on = state_ == State::kPaused && follow_ && gate_.version().half_updated();
  return use_ == Use::kNone && !goes_on;
}

bool RunState::Begin(Use use) {
  MutexLock lock(mu_);
  if (use == Use::kFollow && Forbids()) return false;
  use_ = use;
  SetYielding();
  return true;
}

void RunState::End() {
  MutexLock lock(mu_);
  use_ = Use::kNone;
}

bool RunState::EndsPull() const {
  MutexLock lock(mu_);
  return state_ == State::kStopped || (use_ != Use::kRequest && Forbids());
}

}  // namespace deltawire::receiver
