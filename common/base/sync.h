// Mutexes, condition variables, threads and clocks under one name each, so that a deterministic
// simulation can substitute its own (tests/simulation). In every other build they are the standard
// library's, with no code in between. No mutex is held across I/O, a wait for the pool, or a
// callback. The lock order is in docs/decisions.md.
#pragma once

#ifdef DELTAWIRE_SIMULATION
#include "simulated_sync.h"
#else

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>
#include <thread>

namespace deltawire {

using Mutex = std::mutex;
using SharedMutex = std::shared_mutex;
using CondVar = std::condition_variable;
using Thread = std::thread;
/// For deadlines and durations.
using SteadyClock = std::chrono::steady_clock;
/// For times that people and other machines read.
using WallClock = std::chrono::system_clock;

}  // namespace deltawire

#endif

#include <cstdint>

namespace deltawire {

inline int64_t UnixNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(WallClock::now().time_since_epoch())
      .count();
}

}  // namespace deltawire
