// Calls of our two libraries from Python, with the exceptions of deltawire/_errors.py.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "python/gil.h"
#include "sender/export/abi/deltawire_export.h"

namespace deltawire {

/// Raises the exception for `code`. REQUIRES: the GIL.
inline void Check(int code, const std::string& text) {
  namespace py = pybind11;
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();  // a signal has ended a wait
  if (code == DW_OK) return;
  const py::object error = py::module_::import("deltawire._errors").attr("from_status")(code, text);
  PyErr_SetObject(py::type::of(error).ptr(), error.ptr());
  throw py::error_already_set();
}

/// Runs a library call without the GIL. This thread's next call clears `last_error`, so its text is
/// copied at once.
template <typename Call>
void Run(Call call, const char* (*last_error)() = dw_last_error) {
  int code = DW_OK;
  std::string text;
  {
    const GilReleased released;
    code = call();
    if (code != DW_OK) text = last_error();
  }
  Check(code, text);
}

}  // namespace deltawire
