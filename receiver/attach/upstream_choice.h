// Which of several upstreams, given in order of preference, a receiver uses now. One that fails or
// is behind is left for the first that may be tried. The receiver returns to a preferred one after
// two answers with a random pause between, so that not all return at once, and not before a pause
// that grows with each failure at its work. Pure: a function of events and time. Owner: a
// FailoverUpstream, under its lock. Cost: O(upstreams). Errors: none.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "common/base/sync.h"
#include "receiver/attach/follower.h"

namespace deltawire::receiver {

class UpstreamChoice {
 public:
  using Time = SteadyClock::time_point;
  /// The longest pause before an upstream that cannot be reached is tried again.
  static constexpr std::chrono::milliseconds kLongest = Backoff::kLongest;
  /// Pauses; half of each is fixed, and the other half random.
  struct Times {
    /// Between the two answers of an upstream that is used again.
    std::chrono::milliseconds settle{2000};
    /// Between two comparisons.
    std::chrono::milliseconds compare_every{10000};
    /// Before an upstream that answers, but fails at what it is asked, is preferred again: after
    /// its first failure, and at most. Each pause is four times the one before.
    std::chrono::milliseconds first_doubt{1000}, longest_doubt{300000};
    /// A receiver that holds nothing waits so long after its start for an upstream that cannot be
    /// reached: in a fleet that starts all at once, its relay may only be about to listen.
    std::chrono::milliseconds start_patience{3000};
  };

  UpstreamChoice(size_t upstreams, uint64_t seed) : UpstreamChoice(upstreams, seed, Times()) {}
  UpstreamChoice(size_t upstreams, uint64_t seed, const Times& times)
      : times_(times), upstreams_(upstreams), random_(seed) {}

  size_t current() const { return current_; }
  enum class Failure : uint8_t {
    kGone,     ///< it cannot be reached, or is behind
    kBadWork,  ///< a pull, or a call that a pull needs, has failed there
  };
  /// `upstream` did not do what it was asked. If it is the current one, another becomes it: the
  /// first that may be tried now, or else the one that may be tried soonest.
  void Failed(size_t upstream, Failure failure, Time now);
  /// A whole pull from `upstream` has succeeded, which says more than an answer.
  void Worked(size_t upstream);

  /// Replaces the upstreams. For each one, in the new order, `former` has its place in the old
  /// order, and what is known of it stays; nullopt: it is new. A new one that is preferred to the
  /// current one becomes the current one. If the current one is gone, the first that may be tried
  /// does.
  void Reorder(const std::vector<std::optional<size_t>>& former, Time now);

  /// The upstream before the current one that is to be asked now whether it is well; nullopt: none.
  std::optional<size_t> Probe(Time now) const;
  /// When Probe may next return one.
  Time NextProbe() const;
  /// The answer to a probe. True: `upstream` is well again, and Return may be called.
  bool Probed(size_t upstream, bool well, Time now);
  /// Makes `upstream` the current one.
  void Return(size_t upstream);

  // An upstream that works may itself have lost its upstream, and so tell of nothing new.
  /// The upstream to be asked now for its newest state, to compare; nullopt: none.
  std::optional<size_t> Compare(Time now) const;
  Time NextCompare() const;
  /// `newer`: whether the upstream that Compare named has a newer state than any that the current
  /// one has told of. `news` counts what the current one has told, its own pull's progress
  /// included. True: it was newer the last time as well, and nothing was told in between, so the
  /// current one is behind.
  bool Compared(bool newer, uint64_t news, Time now);

 private:
  struct State {
    Time try_at{};          ///< not before
    Time prefer_at{};       ///< not preferred to one that works before this
    uint32_t bad_work = 0;  ///< in a row
    bool answered = false;
    Backoff backoff;
  };
  void PutOff(State& state, Time now);
  /// Of those that may be tried now the preferred one, or else the one that may be tried soonest.
  size_t Soonest(Time now) const;
  /// Half of `most` to all of it.
  SteadyClock::duration Pause(std::chrono::milliseconds most);

  const Times times_;
  std::vector<State> upstreams_;
  size_t current_ = 0;
  Time compare_at_{};
  std::optional<uint64_t> behind_;  // `news` when Compared last found a newer state elsewhere
  std::mt19937_64 random_;
};

}  // namespace deltawire::receiver
