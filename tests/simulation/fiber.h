// A fiber of the simulation, and the memory in which it runs.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace deltawire::simulation {

using Time = std::chrono::nanoseconds;  ///< since the history's beginning, or a duration
inline constexpr Time kForever = Time::max();

class Process;

/// Memory in which fibers run, one after the other. Never given back.
struct Stack {
  ucontext_t context;  ///< for the first fiber; the others begin at `entry`
  jmp_buf entry;
  bool entered = false;
};

/// kRunnable <-> kBlocked; either -> kDone, when the body returns or the process is killed.
struct Fiber {
  enum class State : uint8_t { kRunnable, kBlocked, kDone };
  static constexpr size_t kNowhere = ~size_t{0};
  uint64_t number = 0;
  std::string name;
  std::shared_ptr<Process> process;
  std::function<void()> body;
  Stack* stack = nullptr;
  jmp_buf place;  ///< where it stopped, once `entered`
  bool entered = false;
  State state = State::kRunnable;
  size_t waits_at = kNowhere;  ///< its index among the RunQueue's waiting ones
  const void* key = nullptr;   ///< the object that it waits for
  const char* doing = "";
  bool lock = false;  ///< it waits for a mutex
  Time since{0};
  bool timed_out = false;
  std::map<const void*, std::shared_ptr<void>> locals;  ///< the fiber's thread_local objects
};

}  // namespace deltawire::simulation
