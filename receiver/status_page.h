// The receiver's status page: its versions, senders, last commits, engines, and the receivers that
// it serves. The metrics server keeps the callback; the daemon outlives it. The page is made of
// copies, so no lock is held while it is sent.
#pragma once

#include <functional>
#include <string>

namespace deltawire::receiver {

class Daemon;

/// Makes the HTML document.
std::function<std::string()> StatusPage(const Daemon& daemon);

}  // namespace deltawire::receiver
