// The sender's trainer socket, from a client's side: its path, and why no process accepts
// connections there. gRPC only reports a late call, so these functions dial the socket.
#pragma once

#include <string>
#include <string_view>

#include "common/base/status.h"

namespace deltawire {

/// Returns the socket's path. A data directory stands for the socket in it, even before the sender
/// has made either.
std::string TrainerSocketOf(std::string endpoint);

/// Returns OK if a process accepts connections at `path`, else kUnavailable with the reason and the
/// remedy. `pass` is this program's way to set another path, e.g. "pass --socket PATH".
/// kInvalidArgument: no socket can have such a path.
Status ProbeTrainerSocket(const std::string& path, std::string_view pass);

}  // namespace deltawire
