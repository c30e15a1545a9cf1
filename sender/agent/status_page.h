// The sender's status page: the versions that it published, when receivers committed them, and the
// receivers themselves. The agent outlives the returned callback. The page is a copy, so no lock is
// held while a client reads it.
#pragma once

#include <functional>
#include <string>

#include "sender/agent/agent.h"

namespace deltawire::sender {

/// Makes the HTML document. `address` is where this sender's status is asked for.
std::function<std::string()> StatusPage(const Agent& agent, std::string address);

}  // namespace deltawire::sender
