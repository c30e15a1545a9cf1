// Waits in tests for effects of other threads and processes: polls a condition up to a deadline.
// Owner: none; a free function. Threads: any. Cost: a poll every 0.5 ms. Errors: returns false.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace deltawire::testing {

/// Polls `condition` until it holds; false when `deadline` passes first.
inline bool Eventually(const std::function<bool()>& condition,
                       std::chrono::milliseconds deadline = std::chrono::seconds(60)) {
  constexpr std::chrono::microseconds kPoll{500};
  const auto end = std::chrono::steady_clock::now() + deadline;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(kPoll);
  }
  return true;
}

}  // namespace deltawire::testing
