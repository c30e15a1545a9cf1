// The plain backend: docs/delta_format.md written down element by element, the oracle of the
// others. Stateless and thread-safe; slow on purpose wherever plainness costs speed.
#pragma once

#include "kernels/kernels.h"

namespace deltawire::kernels {

const Backend& ScalarBackend();

}  // namespace deltawire::kernels
