// The times of one bulk stream, from which a pull's link is estimated and its stages are told. Its
// owner calls it from one thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "common/base/sync.h"

namespace deltawire {

class StreamClock {
 public:
  using Time = SteadyClock::time_point;

  /// The stream makes a frame.
  void Begin(Time now) {
    if (!first_frame_) first_frame_ = now;
  }
  void AddCoding(double seconds) { coding_seconds_ += seconds; }
  /// The stream has nothing to send, until it asks again.
  void Rest(Time now) {
    if (first_frame_) idle_since_ = now;
  }
  void Resume(Time now) {
    if (idle_since_) idle_seconds_ += Seconds(now - *std::exchange(idle_since_, std::nullopt));
  }
  /// The kernel held `queued` bytes when the stream began to rest, and holds `left` now.
  void AddRest(uint64_t queued, uint64_t left);
  /// The stream has sent its End.
  void Close(Time now) {
    if (first_frame_) seconds_ = Seconds(now - *first_frame_) - idle_seconds_;
  }

  std::optional<Time> first_frame() const { return first_frame_; }
  double coding_seconds() const { return coding_seconds_; }
  double seconds() const { return seconds_; }  ///< from the first frame to Close, without rests
  uint64_t idle_bytes() const { return idle_bytes_; }  ///< that the kernel sent during rests

 private:
  static double Seconds(SteadyClock::duration d) {
    return std::chrono::duration<double>(d).count();
  }

  std::optional<Time> first_frame_, idle_since_;
  double idle_seconds_ = 0, coding_seconds_ = 0, seconds_ = 0;
  uint64_t idle_bytes_ = 0;
};

inline void StreamClock::AddRest(uint64_t queued, uint64_t left) {
  // More than a receiver's kernel leaves unacknowledged of what has come: the link was at work all
  // the time.
  constexpr uint64_t kAtWork = uint64_t{64} << 10;
  if (!idle_since_) return;
  if (left > kAtWork) {
    idle_since_.reset();
  } else {
    // Nobody knows how long these bytes took, so neither they nor the time tell of the link.
    idle_bytes_ += queued - std::min(queued, left);
  }
}

}  // namespace deltawire
