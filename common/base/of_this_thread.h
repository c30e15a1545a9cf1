// OfThisThread<T>(): one T for each thread, made when it first asks, for scratch memory. Apart from
// sync.h, which is everywhere. In a simulated build a thread is a fiber, and has its own as well.
// Owner: the thread. Cost: as thread_local.
#pragma once

#ifdef DELTAWIRE_SIMULATION
#include "simulated_thread_local.h"
#else

namespace deltawire {

template <typename T>
T& OfThisThread() {
  thread_local T value;
  return value;
}

}  // namespace deltawire

#endif
