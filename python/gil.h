// Guards that release and take the GIL for a scope. A thread that returns while the interpreter
// ends cannot get it: Python before 3.14 unwinds such a thread (pthread_exit), which no destructor
// allows, so the process would abort. Here the thread sleeps until the process is gone, as in
// Python 3.14. Each guard belongs to one thread.
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

/// A guard that holds the GIL for a call from the library, on any thread. Code under it that
/// releases the GIL itself may be unwound as well: it catches abi::__forced_unwind, and sleeps.
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

/// Returns whether this is Python's main thread, the only one that gets signals. REQUIRES: the GIL.
inline bool IsMainThread() {
  const pybind11::object main = pybind11::module_::import("threading").attr("main_thread")();
  return main.attr("ident").cast<unsigned long>() == PyThread_get_thread_ident();
}

/// Takes the GIL in the middle of a wait, and returns whether a signal's handler has raised an
/// exception. Then the wait ends with it. Never true on other threads than the main one.
inline int SignalRaised(void*) {
  const GilHeld held;
  return PyErr_Occurred() != nullptr || PyErr_CheckSignals() != 0 ? 1 : 0;
}

}  // namespace deltawire
