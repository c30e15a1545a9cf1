// The attempt: a number that ties together the parts of one offload, over ranks and agents. Another
// offload of the same version gets a different number.
#pragma once

#include <cstdint>

namespace deltawire {

/// Returns a random number, never 0. One rank draws it and sends it to the others.
uint64_t DrawAttempt();

}  // namespace deltawire
