// The choice among several upstreams, given in order of preference. A receiver leaves one that
// fails or is behind for the first that may be tried. It returns to a preferred one after two
// answers with a random pause between, so that receivers do not all return at once. After failed
// pulls it waits for a pause that grows with each of them. Pure: a function of events and time. A
// FailoverUpstream owns it, under its lock.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "common/base/backoff.h"
#include "common/base/sync.h"

namespace deltawire::receiver {

class UpstreamChoice {
 public:
  using Time = SteadyClock::time_point;
  /// Pauses; half of each is fixed, and the other half random.
  struct Times {
    /// Between the two answers after which a receiver returns to an upstream.
    std::chrono::milliseconds settle{2000};
    /// Between two comparisons.
    std::chrono::milliseconds compare_every{10000};
    /// Before an upstream whose pull failed is preferred again: after the first failure, and at
    /// most. Each pause is four times the one before.
    std::chrono::milliseconds first_doubt{1000}, longest_doubt{300000};
    /// The time after its start for which a receiver that holds nothing waits for an upstream that
    /// cannot be reached: in a fleet that starts at once, its relay may be about to listen.
    std::chrono::milliseconds start_patience{3000};
  };

  UpstreamChoice(size_t upstreams, uint64_t seed) : UpstreamChoice(upstreams, seed, Times()) {}
  UpstreamChoice(size_t upstreams, uint64_t seed, const Times& times)
      : times_(times), upstreams_(upstreams), random_(seed) {}

  size_t current() const { return current_; }
  enum class Failure : uint8_t {
    kGone,     ///< it cannot be reached, or is behind
    kBadWork,  ///< a pull, or a call for a pull, has failed there
  };
  /// `upstream` has failed. If it is the current one, it is replaced: by the first that may be
  /// tried now, or else by the one that may be tried soonest.
  void NoteFailure(size_t upstream, Failure failure, Time now);
  /// A pull from `upstream` has succeeded, so its earlier failures are forgotten.
  void NoteSuccess(size_t upstream);

  /// Replaces the upstreams. For each one, in the new order, `former` has its place in the old
  /// order, or nullopt if it is new. Known ones keep their record. A new one that is preferred to
  /// the current one becomes the current one. If the current one is gone, the first that may be
  /// tried replaces it.
  void Reorder(const std::vector<std::optional<size_t>>& former, Time now);

  /// Returns a preferred upstream to ask now whether it works, or nullopt.
  std::optional<size_t> NextToProbe(Time now) const;
  /// Returns when NextToProbe may next return one.
  Time NextProbeTime() const;
  /// Notes the answer to a probe. Returns true if Return may be called.
  bool NoteProbe(size_t upstream, bool well, Time now);
  /// Makes `upstream` the current one.
  void Return(size_t upstream);

  // An upstream that works may have lost its own upstream, and is then behind.
  /// Returns the upstream to ask now for its newest state, to compare, or nullopt.
  std::optional<size_t> NextToCompare(Time now) const;
  Time NextCompareTime() const;
  /// Notes a comparison. `newer`: the other upstream has a newer state than the current one has
  /// named. `news` counts the current one's events that said something new, progress of its own
  /// pull included. Returns true if the current one is behind: the other was newer the last time,
  /// too, and there was no news since.
  bool NoteComparison(bool newer, uint64_t news, Time now);

 private:
  struct State {
    Time try_at{};          ///< not before
    Time prefer_at{};       ///< not preferred to one that works before this
    uint32_t bad_work = 0;  ///< in a row
    bool answered = false;
    Backoff backoff;
  };
  void PutOff(State& state, Time now);
  /// Returns the preferred upstream of those that may be tried now, or the one that may be tried
  /// soonest.
  size_t Soonest(Time now) const;
  /// Half of `most` to all of it.
  SteadyClock::duration Pause(std::chrono::milliseconds most);

  const Times times_;
  std::vector<State> upstreams_;
  size_t current_ = 0;
  Time compare_at_{};
  std::optional<uint64_t>
      behind_;  // `news` when the last comparison found a newer state at the other upstream
  std::mt19937_64 random_;
};

}  // namespace deltawire::receiver
