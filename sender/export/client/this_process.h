// Who makes an offload, in words. Stateless; any thread. Errors: none.
#pragma once

#include <string>

namespace deltawire {

/// "python train.py, process 4711 on node7": for those who are refused because of this process.
std::string ThisProcess();

}  // namespace deltawire
