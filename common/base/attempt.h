// An attempt is a number that ties the parts of one offload together, over ranks and agents.
// Another offload of the same version gets a different number. Stateless; any thread. Errors: none.
#pragma once

#include <cstdint>

namespace deltawire {

/// A random number, never 0. One rank draws it and hands it to the others.
uint64_t DrawAttempt();

}  // namespace deltawire
