#include "sender/agent/diff/gpu_slot.h"

#include <utility>

namespace deltawire::sender {

GpuSlot::GpuSlot(Make make) : make_(std::move(make)), diff_(make_(&where_)) {
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
  std::string where;
  std::shared_ptr<GpuDiff> made = make_(&where);
  MutexLock lock(mu_);
  where_ = std::move(where);
  if (made == nullptr) return;
  diff_ = std::move(made);
  state_ = State::kPinned;
}

std::string GpuSlot::where() const {
  MutexLock lock(mu_);
  const bool wrong = before_.mismatches > 0 || (diff_ != nullptr && diff_->counts().mismatches > 0);
  return wrong ? "the CPU (a result of the GPU was wrong)" : where_;
}

GpuDiff::Counts GpuSlot::counts() const {
  MutexLock lock(mu_);
  GpuDiff::Counts counts = before_;
  if (diff_ != nullptr) counts += diff_->counts();
  return counts;
}

}  // namespace deltawire::sender
