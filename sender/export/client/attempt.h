// What names an offload and who makes it. An attempt ties the parts of one offload together, over
// ranks and agents, and tells it from another offload of the same version. Stateless; any thread.
// Errors: none.
#pragma once

#include <cstdint>
#include <string>

namespace deltawire {

/// A random number, never 0. One rank draws it and hands it to the others.
uint64_t DrawAttempt();

/// "python train.py, process 4711 on node7": for those who are refused because of this process.
std::string ThisProcess();

}  // namespace deltawire
