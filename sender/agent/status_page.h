// The sender's status page: what it has published, how that reached the receivers, and who they
// are. Owner: the metrics server keeps the callback; the agent outlives it. Threads: any. Cost: the
// last 64 versions of each model, and the attached receivers. Errors: none.
#pragma once

#include <functional>
#include <string>

#include "sender/agent/agent.h"

namespace deltawire::sender {

/// Makes the HTML document.
std::function<std::string()> StatusPage(const Agent& agent);

}  // namespace deltawire::sender
