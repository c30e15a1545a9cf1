// A backoff: the pause before a retry, which doubles with each failure. A random part of up to half
// is taken off, so that processes which failed together do not all come back at once.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>

#include "common/base/sync.h"

namespace deltawire {

class Backoff {
 public:
  static constexpr std::chrono::milliseconds kFirst{50}, kLongest{2000};

  explicit Backoff(std::chrono::milliseconds first = kFirst,
                   std::chrono::milliseconds longest = kLongest)
      : first_(first), longest_(longest), pause_(first) {}

  /// The next pause is the first again.
  void Reset() { pause_ = first_; }
  /// Returns the next pause, which is at most `limit`.
  SteadyClock::duration Next(std::mt19937_64& random, std::chrono::milliseconds limit) {
    const SteadyClock::duration whole = std::min(pause_, limit);
    pause_ = std::min(pause_ * 2, longest_);
    return whole - SteadyClock::duration(random() % static_cast<uint64_t>(whole.count() / 2 + 1));
  }
  SteadyClock::duration Next(std::mt19937_64& random) { return Next(random, longest_); }

 private:
  std::chrono::milliseconds first_, longest_, pause_;
};

}  // namespace deltawire
