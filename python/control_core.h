// The part of deltawire._core that directs daemons: the classes Control and ControlCall, wrapped by
// deltawire/control.py. Any thread may use a Control; one thread at a time calls a call's next(). A
// wait handles signals.
#pragma once

#include <pybind11/pybind11.h>

namespace deltawire {

void BindControl(pybind11::module_& module);

}  // namespace deltawire
