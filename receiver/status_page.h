// The receiver's status page: what it holds, how the last versions came, and its engines. Owner:
// the metrics server keeps the callback; the daemon outlives it. Threads: any. Cost: the last 64
// commits of each model. Errors: none.
#pragma once

#include <functional>
#include <string>

namespace deltawire::receiver {

class Daemon;

/// Makes the HTML document.
std::function<std::string()> StatusPage(const Daemon& daemon);

}  // namespace deltawire::receiver
