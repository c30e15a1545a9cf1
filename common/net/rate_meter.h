// The best rate of bytes during a pull, over windows of a fifth of a second, so that neither its
// slow start nor its last stream counts. One thread at a time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace deltawire::net {

class RateMeter {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::milliseconds kWindow{200};

  void Add(uint64_t bytes, Time now) {
    if (first_ == Time{}) first_ = window_ = now;
    last_ = now;
    in_window_ += bytes;
    if (now - window_ < kWindow) return;
    const double seconds = std::chrono::duration<double>(now - window_).count();
    best_ = std::max(best_, static_cast<double>(in_window_) / seconds);
    window_ = now;
    in_window_ = 0;
  }
  /// In bytes per second; 0 until a window has ended.
  double best() const { return best_; }
  double seconds() const { return std::chrono::duration<double>(last_ - first_).count(); }

 private:
  Time first_{}, window_{}, last_{};
  uint64_t in_window_ = 0;
  double best_ = 0;
};

}  // namespace deltawire::net
