#include "receiver/attach/upstream_choice.h"

#include <algorithm>

namespace deltawire::receiver {

SteadyClock::duration UpstreamChoice::Pause(std::chrono::milliseconds most) {
  const auto half = std::chrono::duration_cast<SteadyClock::duration>(most) / 2;
  return half + SteadyClock::duration(random_() % static_cast<uint64_t>(half.count()));
}

void UpstreamChoice::PutOff(State& state, Time now) {
  state.answered = false;
  state.try_at = now + state.backoff.Next(random_);
}

void UpstreamChoice::NoteFailure(size_t upstream, Failure failure, Time now) {
  State& failed = upstreams_[upstream];
  PutOff(failed, now);
  if (failure == Failure::kBadWork) {
    auto pause = times_.first_doubt;
    for (uint32_t i = 0; i < failed.bad_work && pause < times_.longest_doubt; ++i) pause *= 4;
    ++failed.bad_work;
    failed.prefer_at = now + Pause(std::min(pause, times_.longest_doubt));
  }
  if (upstream == current_) current_ = Soonest(now);
}

size_t UpstreamChoice::Soonest(Time now) const {
  // An upstream of bad work is still better than one that cannot be reached.
  const auto sooner = [now](const State& a, const State& b) {
    return std::pair(std::max(a.try_at, now), std::max(a.prefer_at, now)) <
           std::pair(std::max(b.try_at, now), std::max(b.prefer_at, now));
  };
  // Among equals min_element returns the first, which is the preferred one.
  return static_cast<size_t>(std::ranges::min_element(upstreams_, sooner) - upstreams_.begin());
}

void UpstreamChoice::Reorder(const std::vector<std::optional<size_t>>& former, Time now) {
  std::vector<State> upstreams;
  std::optional<size_t> fresh, kept;  // the first new one, and the place of the current one
  for (size_t i = 0; i < former.size(); ++i) {
    upstreams.push_back(former[i] ? upstreams_[*former[i]] : State());
    if (!former[i] && !fresh) fresh = i;
    if (former[i] == current_) kept = i;
  }
  upstreams_ = std::move(upstreams);
  behind_.reset();
  // Known upstreams that are preferred have to answer a probe first, as always.
  current_ = !kept ? Soonest(now) : fresh && *fresh < *kept ? *fresh : *kept;
  upstreams_[current_].answered = false;
}

void UpstreamChoice::NoteSuccess(size_t upstream) {
  State& state = upstreams_[upstream];
  state.backoff.Reset();
  state.bad_work = 0;
  state.prefer_at = {};
}

std::optional<size_t> UpstreamChoice::NextToProbe(Time now) const {
  for (size_t i = 0; i < current_; ++i) {
    if (std::max(upstreams_[i].try_at, upstreams_[i].prefer_at) <= now) return i;
  }
  return std::nullopt;
}

UpstreamChoice::Time UpstreamChoice::NextProbeTime() const {
  Time next = Time::max();
  for (size_t i = 0; i < current_; ++i) {
    next = std::min(next, std::max(upstreams_[i].try_at, upstreams_[i].prefer_at));
  }
  return next;
}

bool UpstreamChoice::NoteProbe(size_t upstream, bool well, Time now) {
  State& state = upstreams_[upstream];
  if (!well) {
    PutOff(state, now);
    return false;
  }
  if (state.answered) return true;
  state.answered = true;
  state.try_at = now + Pause(times_.settle);
  return false;
}

void UpstreamChoice::Return(size_t upstream) {
  upstreams_[upstream].answered = false;
  current_ = upstream;
}

std::optional<size_t> UpstreamChoice::NextToCompare(Time now) const {
  // The last one is the nearest to the origin.
  return NextCompareTime() <= now ? std::optional(upstreams_.size() - 1) : std::nullopt;
}

UpstreamChoice::Time UpstreamChoice::NextCompareTime() const {
  return current_ + 1 < upstreams_.size() ? compare_at_ : Time::max();
}

bool UpstreamChoice::NoteComparison(bool newer, uint64_t news, Time now) {
  compare_at_ = now + Pause(times_.compare_every);
  if (!newer) {
    behind_.reset();
    return false;
  }
  if (behind_ && *behind_ == news) return true;
  behind_ = news;
  return false;
}

}  // namespace deltawire::receiver
