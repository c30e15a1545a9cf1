#include "receiver/upstream_choice.h"

#include <algorithm>

namespace deltawire::receiver {

SteadyClock::duration UpstreamChoice::Pause(std::chrono::milliseconds most) {
  const auto half = std::chrono::duration_cast<SteadyClock::duration>(most) / 2;
  return half + SteadyClock::duration(random_() % static_cast<uint64_t>(half.count()));
}

void UpstreamChoice::PutOff(State& state, Time now) {
  state.answered = false;
  state.try_at = now + std::chrono::duration_cast<SteadyClock::duration>(
                           state.backoff.Next(random_, kLongest));
}

void UpstreamChoice::Failed(size_t upstream, Time now) {
  PutOff(upstreams_[upstream], now);
  if (upstream != current_) return;
  const auto sooner = [now](const State& a, const State& b) {
    return std::max(a.try_at, now) < std::max(b.try_at, now);
  };
  // Of those that may be tried now min_element takes the first, that is, the preferred one.
  current_ = static_cast<size_t>(std::ranges::min_element(upstreams_, sooner) - upstreams_.begin());
}

std::optional<size_t> UpstreamChoice::Probe(Time now) const {
  for (size_t i = 0; i < current_; ++i) {
    if (upstreams_[i].try_at <= now) return i;
  }
  return std::nullopt;
}

UpstreamChoice::Time UpstreamChoice::NextProbe() const {
  Time next = Time::max();
  for (size_t i = 0; i < current_; ++i) next = std::min(next, upstreams_[i].try_at);
  return next;
}

bool UpstreamChoice::Probed(size_t upstream, bool well, Time now) {
  State& state = upstreams_[upstream];
  if (!well) {
    PutOff(state, now);
    return false;
  }
  if (state.answered) return true;
  state.answered = true;
  state.try_at = now + Pause(kSettle);
  return false;
}

void UpstreamChoice::Return(size_t upstream) {
  upstreams_[upstream].answered = false;
  current_ = upstream;
}

std::optional<size_t> UpstreamChoice::Compare(Time now) const {
  // The last one is the nearest to the origin.
  return NextCompare() <= now ? std::optional(upstreams_.size() - 1) : std::nullopt;
}

UpstreamChoice::Time UpstreamChoice::NextCompare() const {
  return current_ + 1 < upstreams_.size() ? compare_at_ : Time::max();
}

bool UpstreamChoice::Compared(bool newer, const Identity& seen, Time now) {
  compare_at_ = now + Pause(kCompareEvery);
  if (!newer) {
    behind_.reset();
    return false;
  }
  if (behind_ && *behind_ == seen) return true;
  behind_ = seen;
  return false;
}

}  // namespace deltawire::receiver
