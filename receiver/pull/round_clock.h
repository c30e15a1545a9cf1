// The times of a pull round's steps, without those that it waited for readers. A PullRound owns it,
// and its driving thread alone uses it, except for MarkPublished.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "common/base/checked_mutex.h"
#include "common/base/sync.h"
#include "common/delta/pull_stats.h"

namespace deltawire::receiver {

/// The times of a pull's parts, in seconds, without its waits for readers.
struct RoundTimes {
  double ahead = 0;     ///< of an unwritten version: before it was published; transfer is after it
  double transfer = 0;  ///< from the call that opens it until the last frame is in
  double stage = 0;     ///< of all streams, within transfer: checking and decoding what came
  double apply = 0;
  double commit = 0;
};

class RoundClock {
 public:
  const RoundTimes& times() const { return times_; }
  bool prepared() const { return prepared_at_.has_value(); }

  void BeginStep();
  /// Adds the seconds since BeginStep, without waits, to `part`.
  void EndStep(double RoundTimes::*part);
  /// Waits within a step. Returns what `wait` returns.
  template <typename F>
  auto Wait(const F& wait) {
    const auto start = SteadyClock::now();
    auto ended = wait();
    waited_ += std::chrono::duration<double>(SteadyClock::now() - start).count();
    return ended;
  }
  /// The first transfer has ended, which began with the round.
  void EndFirstTransfer();
  /// An unwritten version is published, when `bytes` of it had come. Any thread may call it.
  void MarkPublished(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  /// The first transfer, with `bytes` in all, was of an unwritten version: sets what came before
  /// its publish apart.
  void SetAhead(uint64_t bytes, PullStats& stats) ABSL_LOCKS_EXCLUDED(mu_);
  void AddStage(double seconds) { times_.stage += seconds; }
  /// The version is prepared. From here until the next step, the round waits for its group's word.
  void MarkPrepared() { prepared_at_ = SteadyClock::now(); }
  /// The round is done.
  void AddTo(PullStats& stats) const;

 private:
  using Time = SteadyClock::time_point;
  struct Published {
    Time at;
    uint64_t bytes = 0;
  };

  RoundTimes times_;
  Time start_ = SteadyClock::now();  // of the round, or the publish of an unwritten version
  Time last_frame_ = start_;         // of the first transfer
  Time step_start_ = start_;
  double waited_ = 0;  // in this step
  std::optional<Time> prepared_at_;
  double held_ = 0;  // from there until the group's word
  CheckedMutex mu_;
  std::optional<Published> published_ ABSL_GUARDED_BY(mu_);
};

}  // namespace deltawire::receiver
