// Replaces common/base/of_this_thread.h in a simulated build: one T for each fiber. Owner: the
// fiber. Threads: one. Cost: a map's look-up. Errors: none.
#pragma once

#include <memory>

namespace deltawire {
namespace simulation {
/// The running fiber's object under `key`; null at first.
std::shared_ptr<void>& OfThisFiber(const void* key);
}  // namespace simulation

template <typename T>
T& OfThisThread() {
  static const char key = 0;
  std::shared_ptr<void>& slot = simulation::OfThisFiber(&key);
  if (slot == nullptr) slot = std::make_shared<T>();
  return *static_cast<T*>(slot.get());
}

}  // namespace deltawire
