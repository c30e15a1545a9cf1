// Which of several upstreams, given in order of preference, a receiver uses now. A failed one is
// left for the first that may be tried, and so is one that is behind; a preferred one is used again
// after it has answered twice, with a random pause between, so that not all return at once. Pure: a
// function of events and time. Owner: a FailoverUpstream, under its lock. Cost: O(upstreams).
// Errors: none.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "common/base/sync.h"
#include "receiver/follower.h"

namespace deltawire::receiver {

class UpstreamChoice {
 public:
  using Time = SteadyClock::time_point;
  /// The longest pause before a failed upstream is tried again.
  static constexpr std::chrono::milliseconds kLongest{10000};
  /// The pause between the two answers of an upstream that is used again: half of it to all.
  static constexpr std::chrono::milliseconds kSettle{2000};
  /// The pause between two comparisons: half of it to all.
  static constexpr std::chrono::milliseconds kCompareEvery{10000};

  UpstreamChoice(size_t upstreams, uint64_t seed) : upstreams_(upstreams), random_(seed) {}

  size_t current() const { return current_; }
  /// `upstream` did not do what it was asked. If it is the current one, another becomes it: the
  /// first that may be tried now, or else the one that may be tried soonest.
  void Failed(size_t upstream, Time now);
  /// The current upstream did what it was asked.
  void Worked() { upstreams_[current_].backoff.Reset(); }

  /// The upstream before the current one that is to be asked now whether it is well; nullopt: none.
  std::optional<size_t> Probe(Time now) const;
  /// When Probe may next return one.
  Time NextProbe() const;
  /// The answer to a probe. True: `upstream` is well again, and Return may be called.
  bool Probed(size_t upstream, bool well, Time now);
  /// Makes `upstream` the current one.
  void Return(size_t upstream);

  // One that works may itself have lost its upstream, and tell of nothing new.
  /// The upstream to be asked now for its newest state, to compare; nullopt: none.
  std::optional<size_t> Compare(Time now) const;
  Time NextCompare() const;
  /// Whether the one that was asked has a newer state than `seen`, the newest that the current one
  /// has told of. True: so it was the last time, and `seen` is the same, so the current one is
  /// behind.
  bool Compared(bool newer, const Identity& seen, Time now);

 private:
  struct State {
    Time try_at{};  ///< not before
    bool answered = false;
    Backoff backoff;
  };
  void PutOff(State& state, Time now);
  /// Half of `most` to all of it.
  SteadyClock::duration Pause(std::chrono::milliseconds most);

  std::vector<State> upstreams_;
  size_t current_ = 0;
  Time compare_at_{};
  std::optional<Identity> behind_;  // what was seen here when a newer state was there
  std::mt19937_64 random_;
};

}  // namespace deltawire::receiver
