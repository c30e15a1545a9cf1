// Who makes an offload, in words, for the messages that other ranks get. Stateless. Threads: any.
// Cost: it reads /proc and the host's name. Errors: none; what is not known is left out.
#pragma once

#include <string>

namespace deltawire {

/// "python train.py, process 4711 on node7": for those who are refused because of this process.
std::string ThisProcess();

}  // namespace deltawire
