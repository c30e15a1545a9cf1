// The plain backend: it follows docs/delta_format.md element by element, and is the oracle of the
// others. Stateless and thread-safe; slow on purpose wherever plainness costs speed.
#pragma once

#include "kernels/kernels.h"

namespace deltawire::kernels {

const Backend& ScalarBackend();

}  // namespace deltawire::kernels
