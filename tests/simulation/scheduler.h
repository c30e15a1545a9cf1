// Fibers on one thread, virtual time, and a seeded choice of who runs next. A step is a call of
// Point or a wait; time rises by a microsecond a step and jumps when no fiber can run. Owner: the
// runner of one history, which makes it the current one. Threads: one. Errors: the first Fail ends
// the history; so does a deadlock (all fibers wait without a deadline). Cost: about 0.5 us a
// switch, a stack of 1 MiB a fiber (reused).
#pragma once

#include <setjmp.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulation/fiber.h"
#include "tests/simulation/random.h"
#include "tests/simulation/run_queue.h"

namespace deltawire::simulation {

class Scheduler {
 public:
  struct Options {
    uint64_t seed = 1;
    double switches = 0.1;  ///< share of points at which another fiber may run
    double spurious = 0.0;  ///< share of points at which some condition wait ends spuriously
    uint64_t max_steps = 20'000'000;
    Time longest_lock_wait = std::chrono::seconds(5);
    bool trace = false;
  };

  explicit Scheduler(const Options& options);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;

  /// The scheduler of the running history; null outside of one.
  static Scheduler* current();

  /// Runs `main` as a fiber of `process` until it returns or a failure. The other fibers stay where
  /// they are, as in a machine that is switched off. Returns the failure, or "".
  std::string Run(std::shared_ptr<Process> process, std::function<void()> main);

  std::shared_ptr<Fiber> Spawn(std::string name, std::shared_ptr<Process> process,
                               std::function<void()> body);
  /// A step: here the process may be killed, or another fiber may run.
  void Point(const char* what);
  void Yield();
  /// Waits until Wake(key); false when the deadline came first.
  bool Block(const void* key, const char* doing, Time deadline = kForever, bool lock = false);
  void Sleep(Time duration);
  void Wake(const void* key);
  void WakeOne(const void* key);
  void Join(const std::shared_ptr<Fiber>& fiber);
  /// The fibers of a killed process never run again.
  void Drop(const Process& process);
  /// Ends the calling fiber without unwinding it.
  [[noreturn]] void Abandon();
  /// Ends the history. From a fiber it does not return.
  void Fail(std::string why);

  Time now() const { return now_; }
  /// Advances time by the cost of reading a clock, and returns it.
  Time Tick() { return now_ += std::chrono::nanoseconds(100); }
  uint64_t steps() const { return steps_; }
  /// A hash over all events; equal seeds give equal hashes.
  uint64_t trace_hash() const { return hash_; }
  Random& random() { return random_; }
  Fiber* fiber() const { return running_; }
  Process* process() const { return running_ == nullptr ? nullptr : running_->process.get(); }
  bool failed() const { return !failure_.empty(); }
  bool trace() const { return options_.trace; }
  /// One line per fiber: what it waits for.
  std::string Describe() const;
  void Note(const std::string& text);
  /// Called at every point, before the process may be killed. It must not wait.
  void SetObserver(std::function<void(const char* what)> observer) {
    observer_ = std::move(observer);
  }

 private:
  static void Enter();
  void Loop();
  Fiber* Choose();
  void SwitchTo(Fiber& fiber);
  void SwitchToLoop();
  void Mix(uint64_t value) { hash_ = (hash_ ^ value) * 0x100000001b3; }
  void CheckLockWaits();
  void End(Fiber& fiber);
  /// Frees the fibers that have ended; of a killed process these are many at once.
  void Bury();

  const Options options_;
  Random random_;
  Time now_{0};
  uint64_t steps_ = 0;
  uint64_t hash_ = 0xcbf29ce484222325;
  uint64_t next_number_ = 1;
  std::vector<std::shared_ptr<Fiber>> fibers_;  // by number
  size_t ended_ = 0;                            // in `fibers_`
  RunQueue queue_;
  Fiber* running_ = nullptr;
  Fiber* main_ = nullptr;
  jmp_buf loop_;
  std::vector<Stack*> free_stacks_;
  std::string failure_;
  std::function<void(const char*)> observer_;
  bool observing_ = false;
};

}  // namespace deltawire::simulation
