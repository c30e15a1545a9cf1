// The name of this process in messages to other ranks, from /proc and the host's name. Unknown
// parts are left out.
#pragma once

#include <string>

namespace deltawire {

/// Returns "python train.py, process 4711 on node7", for ranks that this process blocks.
std::string ThisProcess();

}  // namespace deltawire
