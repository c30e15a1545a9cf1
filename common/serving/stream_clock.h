// The times of one bulk stream, for the link's estimate and the stages of its pull. One thread at a
// time.
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

  /// Starts a frame.
  void Begin(Time now) {
    if (!first_frame_) first_frame_ = now;
  }
  void AddCoding(double seconds) { coding_seconds_ += seconds; }
  /// Starts a rest: the stream has nothing to send until Resume.
  void Rest(Time now) {
    if (first_frame_) idle_since_ = now;
  }
  void Resume(Time now) {
    if (idle_since_) idle_seconds_ += Seconds(now - *std::exchange(idle_since_, std::nullopt));
  }
  /// Notes that the kernel held `queued` bytes when the stream began to rest, and holds `left` now.
  void AddRest(uint64_t queued, uint64_t left);
  /// Ends the stream, which has sent its End.
  void Close(Time now) {
    if (first_frame_) seconds_ = Seconds(now - *first_frame_) - idle_seconds_;
  }

  std::optional<Time> first_frame() const { return first_frame_; }
  double coding_seconds() const { return coding_seconds_; }
  double seconds() const { return seconds_; }  ///< from the first frame to Close, without rests
  uint64_t idle_bytes() const { return idle_bytes_; }  ///< sent by the kernel during rests

 private:
  static double Seconds(SteadyClock::duration d) {
    return std::chrono::duration<double>(d).count();
  }

  std::optional<Time> first_frame_, idle_since_;
  double idle_seconds_ = 0, coding_seconds_ = 0, seconds_ = 0;
  uint64_t idle_bytes_ = 0;
};

inline void StreamClock::AddRest(uint64_t queued, uint64_t left) {
  // More bytes than a receiver's kernel leaves unacknowledged mean that the link was busy all the
  // time.
  constexpr uint64_t kBusy = uint64_t{64} << 10;
  if (!idle_since_) return;
  if (left > kBusy) {
    idle_since_.reset();
  } else {
    // The time of these bytes is unknown, so they say nothing about the link.
    idle_bytes_ += queued - std::min(queued, left);
  }
}

}  // namespace deltawire
