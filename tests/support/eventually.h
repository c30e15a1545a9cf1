// Waits in tests for effects of other threads and processes: polls a condition up to a deadline.
// Owner: none; a free function. Threads: any. Cost: a poll every 0.5 ms at first, every 20 ms
// later. Errors: returns false.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

namespace deltawire::testing {

/// Polls `condition` until it holds; false when `deadline` passes first. The longer it waits, the
/// longer it sleeps, up to 20 ms: a condition often asks a daemon, and a hundred tests that wait
/// for a time-out at once are not to keep the processor from what they wait for.
inline bool Eventually(const std::function<bool()>& condition,
                       std::chrono::milliseconds deadline = std::chrono::seconds(60)) {
  using Clock = std::chrono::steady_clock;
  constexpr Clock::duration kShortest = std::chrono::microseconds(500);
  constexpr Clock::duration kLongest = std::chrono::milliseconds(20);
  const auto start = Clock::now();
  while (!condition()) {
    const auto waited = Clock::now() - start;
    if (waited > deadline) return false;
    std::this_thread::sleep_for(std::clamp(waited / 16, kShortest, kLongest));
  }
  return true;
}

}  // namespace deltawire::testing
