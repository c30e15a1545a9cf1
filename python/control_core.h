// The part of deltawire._core that directs daemons: the classes Control and ControlCall, which
// deltawire/control.py makes a Python interface of. Owner: Python. Threads: a Control's from any,
// and a call's next() from one at a time. Cost and errors: the C ABI's; a wait sees signals.
#pragma once

#include <pybind11/pybind11.h>

namespace deltawire {

void BindControl(pybind11::module_& module);

}  // namespace deltawire
