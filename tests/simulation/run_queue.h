// The fibers that may run next and those that wait, with what they wait for. Its order is that of
// the fibers' numbers, so that a history does not depend on addresses.
#pragma once

#include <cstddef>
#include <vector>

#include "tests/simulation/fiber.h"
#include "tests/simulation/random.h"

namespace deltawire::simulation {

class RunQueue {
 public:
  /// Adds a new fiber, which can run.
  void Add(Fiber& fiber);
  /// The fiber, which can run, waits for `fiber.key` from now on, until `deadline` at most.
  void Block(Fiber& fiber, Time deadline);
  /// Does nothing to a fiber that can run.
  void MakeRunnable(Fiber& fiber);
  void Wake(const void* key);
  void WakeOne(const void* key, Random& random);
  /// The fiber is done.
  void End(Fiber& fiber);

  /// The fibers that can run and those whose deadline has come, by number.
  const std::vector<Fiber*>& ReadyAt(Time now);
  /// The earliest deadline; kForever if there is none. REQUIRES: nothing was ready just now.
  Time first_deadline() const { return first_; }
  /// A fiber that has waited for a mutex since `since` or longer; null if there is none.
  const Fiber* FindLockWait(Time since) const;

 private:
  // The fields that every search reads lie together.
  struct Waiting {
    Time deadline;
    const void* key;
    Fiber* fiber;
  };
  void AddReady(Fiber& fiber);
  void RemoveWaiting(Fiber& fiber);
  /// Makes fibers ready whose deadline has come, and finds the next deadline.
  void Expire(Time now);

  std::vector<Fiber*> ready_;     // by number
  size_t expired_ = 0;            // of `ready_` those that are blocked
  std::vector<Waiting> waiting_;  // in no order
  Time first_ = kForever;         // no fiber in `waiting_` has an earlier deadline
  std::vector<Fiber*> found_;     // scratch memory of WakeOne
};

}  // namespace deltawire::simulation
