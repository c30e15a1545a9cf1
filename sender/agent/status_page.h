// The sender's status page: its published versions, their receivers' commits, and the receivers.
// The agent outlives the returned callback.
#pragma once

#include <functional>
#include <string>

#include "sender/agent/agent.h"

namespace deltawire::sender {

/// Returns a function that makes the HTML document. `address`: this sender's control address.
std::function<std::string()> StatusPage(const Agent& agent, std::string address);

}  // namespace deltawire::sender
