// The attempt, which names an offload, and the text that names its publisher. An attempt ties the
// parts of one offload together, over ranks and agents, and tells it from another offload of the
// same version. Owner: none; free functions. Threads: any. Cost: some system calls. Errors: none.
#pragma once

#include <cstdint>
#include <string>

namespace deltawire {

/// A random number, never 0. One rank draws it and hands it to the others.
uint64_t DrawAttempt();

/// "python train.py, process 4711 on node7": names this process to publishers that are refused
/// because of it.
std::string ThisProcess();

}  // namespace deltawire
