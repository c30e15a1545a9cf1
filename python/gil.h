// Gives the GIL away for a scope, and takes it back. A thread that comes back while the interpreter
// ends gets it no more: Python before 3.14 unwinds such a thread (pthread_exit), which no
// destructor lets through, so that the process would be aborted. Here it sleeps until the process
// is gone, as Python 3.14 has it. Threads: a guard is one thread's. Cost: as pybind11's guards.
// Errors: none.
#pragma once

#include <cxxabi.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <optional>

namespace deltawire {

[[noreturn]] inline void SleepUntilTheEnd() {
  while (true) pause();
}

class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased() {
    try {
      PyEval_RestoreThread(state_);
    } catch (abi::__forced_unwind&) {
      SleepUntilTheEnd();
    }
  }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* const state_;
};

/// For a call from the library, of any thread. What runs under it and gives the GIL away itself may
/// meet the same end: it catches abi::__forced_unwind, and sleeps.
class GilHeld {
 public:
  GilHeld() {
    try {
      held_.emplace();
    } catch (abi::__forced_unwind&) {
      SleepUntilTheEnd();
    }
  }

 private:
  std::optional<pybind11::gil_scoped_acquire> held_;
};

/// Python hands signals to its main thread alone. REQUIRES: the GIL.
inline bool IsMainThread() {
  const pybind11::object main = pybind11::module_::import("threading").attr("main_thread")();
  return main.attr("ident").cast<unsigned long>() == PyThread_get_thread_ident();
}

/// Takes the GIL in the middle of a wait, and says whether a signal's handler has raised: then the
/// wait ends, and the exception is there already. On other threads than the main one never.
inline int SignalRaised(void*) {
  const GilHeld held;
  return PyErr_Occurred() != nullptr || PyErr_CheckSignals() != 0 ? 1 : 0;
}

}  // namespace deltawire
