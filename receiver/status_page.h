// The receiver's status page: what it holds, where that comes from, how the last versions came, its
// engines, and whom it serves. Owner: the metrics server keeps the callback; the daemon outlives
// it. Threads: any. Cost: the last 64 commits of each model; it copies what it shows, so no lock is
// held while anybody reads the page. Errors: none.
#pragma once

#include <functional>
#include <string>

namespace deltawire::receiver {

class Daemon;

/// Makes the HTML document.
std::function<std::string()> StatusPage(const Daemon& daemon);

}  // namespace deltawire::receiver
