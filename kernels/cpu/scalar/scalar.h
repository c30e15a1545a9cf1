// The plain backend: it follows docs/delta_format.md element by element, and is the oracle of the
// others. It is slow on purpose, because it must be plain.
#pragma once

#include "kernels/kernels.h"

namespace deltawire::kernels {

const Backend& ScalarBackend();

}  // namespace deltawire::kernels
