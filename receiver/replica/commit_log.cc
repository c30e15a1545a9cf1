#include "receiver/replica/commit_log.h"

#include <algorithm>
#include <chrono>

#include "common/base/call_end.h"
#include "receiver/attach/follower.h"

namespace deltawire::receiver {

void CommitLog::TakeUp(const Identity& id) {
  MutexLock lock(mu_);
  last_ = Commit{id, {}, UnixNanos(), 1};
}

void CommitLog::NoteNamed(const Identity& state, SteadyClock::time_point now) {
  MutexLock lock(mu_);
  const TraceId trace = TraceOf(state);
  std::erase_if(heard_, [&](const auto& heard) { return heard.first == trace; });
  heard_.emplace_back(trace, now);
  if (heard_.size() > Follower::kRemembered) heard_.pop_front();
}

double CommitLog::TakeQueue(const Identity& id, SteadyClock::time_point began) {
  const TraceId trace = TraceOf(id);
  const auto heard = std::ranges::find(heard_, trace, [](const auto& one) { return one.first; });
  if (heard == heard_.end()) return 0;
  // A newer version may be named after the pull that brings it has begun.
  const double seconds =
      std::max(0.0, std::chrono::duration<double>(began - heard->second).count());
  heard_.erase(heard_.begin(), heard + 1);
  return seconds;
}

std::optional<CommitTimes> CommitLog::Add(const Identity& id, const PullStats& stats,
                                          CommitTimes times, SteadyClock::time_point began,
                                          bool anew) {
  MutexLock lock(mu_);
  if (last_ && last_->id == id && !anew) {
    last_->stats = stats;
    return std::nullopt;
  }
  const uint64_t serial = last_ ? last_->serial + 1 : 1;
  times.queue = TakeQueue(id, began);
  last_ = Commit{id, stats, UnixNanos(), serial, times};
  recent_.push_back(*last_);
  if (recent_.size() > kRecent) recent_.pop_front();
  return times;
}

std::optional<Commit> CommitLog::last() const {
  MutexLock lock(mu_);
  return last_;
}

void CommitLog::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  Notify();
}

StatusOr<std::optional<Commit>> CommitLog::CommitAfter(uint64_t seen) const {
  MutexLock lock(mu_);
  if (stopping_) return Stopping("receiver");
  return last_ && last_->serial > seen ? last_ : std::nullopt;
}

std::vector<Commit> CommitLog::recent() const {
  MutexLock lock(mu_);
  return {recent_.begin(), recent_.end()};
}

}  // namespace deltawire::receiver
