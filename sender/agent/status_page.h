// The sender's status page: what it has published, how that reached the receivers, and who they
// are. Owner: the metrics server keeps the callback; the agent outlives it. Threads: any. Cost: the
// last 64 versions of each model, its receivers, and a pass over its tensors' names; it copies what
// it shows, so no lock is held while anybody reads the page. Errors: none.
#pragma once

#include <functional>
#include <string>

#include "sender/agent/agent.h"

namespace deltawire::sender {

/// Makes the HTML document. `address` is where this sender's status is asked for.
std::function<std::string()> StatusPage(const Agent& agent, std::string address);

}  // namespace deltawire::sender
