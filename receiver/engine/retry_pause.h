// The pause before a retry: it doubles from the first to the longest, less a random part of up to
// half.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>

namespace deltawire::receiver {

class RetryPause {
 public:
  RetryPause(std::chrono::milliseconds first, uint64_t seed) : first_(first), random_(seed) {}

  void Reset() { pause_ = {}; }
  std::chrono::nanoseconds Next(std::chrono::milliseconds longest) {
    pause_ = std::min(pause_.count() == 0 ? first_ : 2 * pause_, longest);
    const std::chrono::nanoseconds whole = pause_;
    return whole - std::chrono::nanoseconds(random_() % (whole.count() / 2 + 1));
  }

 private:
  const std::chrono::milliseconds first_;
  std::mt19937_64 random_;
  std::chrono::milliseconds pause_{0};  // the last one; 0: none yet
};

}  // namespace deltawire::receiver
