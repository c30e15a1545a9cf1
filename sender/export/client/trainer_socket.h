// The sender's trainer socket, from a client's side: its path, and why nobody takes connections
// there. gRPC only says that a call was late, so the socket is dialed. Owner: none, functions.
// Threads: any. Cost: one connection. Errors: kUnavailable, with the reason and the remedy.
#pragma once

#include <string>
#include <string_view>

#include "common/base/status.h"

namespace deltawire {

/// The socket's path: a data directory stands for the socket in it, even before the sender has made
/// either.
std::string TrainerSocketOf(std::string endpoint);

/// OK if a process takes connections at `path`. `pass`: how this program is told another path, e.g.
/// "pass --socket PATH". kInvalidArgument: no socket can have such a path.
Status ProbeTrainerSocket(const std::string& path, std::string_view pass);

}  // namespace deltawire
