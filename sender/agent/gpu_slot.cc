#include "sender/agent/gpu_slot.h"

#include <utility>

namespace deltawire::sender {

GpuSlot::GpuSlot(Make make) : make_(std::move(make)), diff_(make_()) {
  if (diff_ != nullptr) state_ = State::kPinned;
}

std::shared_ptr<GpuDiff> GpuSlot::diff() const {
  MutexLock lock(mu_);
  return diff_;
}

bool GpuSlot::diffs() const {
  MutexLock lock(mu_);
  return diff_ != nullptr && diff_->trusted();
}

void GpuSlot::Unpin() {
  std::shared_ptr<GpuDiff> pinned;  // destroyed without the lock
  MutexLock lock(mu_);
  if (state_ != State::kPinned) return;
  state_ = State::kUnpinned;
  before_ += diff_->counts();
  pinned = std::exchange(diff_, nullptr);
}

void GpuSlot::PinAnew() {
  bool wrong = false;
  {
    MutexLock lock(mu_);
    if (state_ != State::kUnpinned) return;
    state_ = State::kNone;
    wrong = before_.mismatches > 0;
  }
  if (wrong) return;
  std::shared_ptr<GpuDiff> made = make_();
  if (made == nullptr) return;
  MutexLock lock(mu_);
  diff_ = std::move(made);
  state_ = State::kPinned;
}

GpuDiff::Counts GpuSlot::counts() const {
  MutexLock lock(mu_);
  GpuDiff::Counts counts = before_;
  if (diff_ != nullptr) counts += diff_->counts();
  return counts;
}

}  // namespace deltawire::sender
