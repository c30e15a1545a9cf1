#include "tests/simulation/run_queue.h"

#include <algorithm>

namespace deltawire::simulation {

void RunQueue::Add(Fiber& fiber) { AddReady(fiber); }

void RunQueue::Block(Fiber& fiber, Time deadline) {
  ready_.erase(std::ranges::lower_bound(ready_, fiber.number, {}, &Fiber::number));
  fiber.state = Fiber::State::kBlocked;
  fiber.waits_at = waiting_.size();
  waiting_.push_back({deadline, fiber.key, &fiber});
  first_ = std::min(first_, deadline);
}

void RunQueue::MakeRunnable(Fiber& fiber) {
  if (fiber.state != Fiber::State::kBlocked) return;
  fiber.state = Fiber::State::kRunnable;
  if (fiber.waits_at == Fiber::kNowhere) {
    --expired_;
  } else {
    RemoveWaiting(fiber);
    AddReady(fiber);
  }
}

void RunQueue::Wake(const void* key) {
  for (size_t i = 0; i < waiting_.size();) {
    // Another one takes the place of a woken one.
    if (waiting_[i].key == key) {
      MakeRunnable(*waiting_[i].fiber);
    } else {
      ++i;
    }
  }
  if (expired_ == 0) return;
  for (Fiber* fiber : ready_) {
    if (fiber->state == Fiber::State::kBlocked && fiber->key == key) MakeRunnable(*fiber);
  }
}

void RunQueue::WakeOne(const void* key, Random& random) {
  found_.clear();
  for (const Waiting& w : waiting_) {
    if (w.key == key) found_.push_back(w.fiber);
  }
  for (Fiber* fiber : ready_) {
    if (fiber->state == Fiber::State::kBlocked && fiber->key == key) found_.push_back(fiber);
  }
  if (found_.empty()) return;
  std::ranges::sort(found_, {}, &Fiber::number);
  MakeRunnable(*found_[random.Below(found_.size())]);
}

void RunQueue::End(Fiber& fiber) {
  MakeRunnable(fiber);
  ready_.erase(std::ranges::lower_bound(ready_, fiber.number, {}, &Fiber::number));
  fiber.state = Fiber::State::kDone;
}

const std::vector<Fiber*>& RunQueue::ReadyAt(Time now) {
  // `first_` may belong to a fiber that was woken since.
  if (first_ <= now || ready_.empty()) Expire(now);
  return ready_;
}

const Fiber* RunQueue::FindLockWait(Time since) const {
  for (const Waiting& w : waiting_) {
    if (w.fiber->lock && w.fiber->since <= since) return w.fiber;
  }
  return nullptr;
}

void RunQueue::AddReady(Fiber& fiber) {
  const auto after = std::ranges::upper_bound(ready_, fiber.number, {}, &Fiber::number);
  ready_.insert(after, &fiber);
}

void RunQueue::RemoveWaiting(Fiber& fiber) {
  Waiting& mine = waiting_[fiber.waits_at];
  mine = waiting_.back();
  mine.fiber->waits_at = fiber.waits_at;
  waiting_.pop_back();
  fiber.waits_at = Fiber::kNowhere;
}

void RunQueue::Expire(Time now) {
  first_ = kForever;
  for (size_t i = 0; i < waiting_.size();) {
    if (waiting_[i].deadline > now) {
      first_ = std::min(first_, waiting_[i++].deadline);
      continue;
    }
    Fiber& fiber = *waiting_[i].fiber;
    RemoveWaiting(fiber);
    AddReady(fiber);
    ++expired_;
  }
}

}  // namespace deltawire::simulation
