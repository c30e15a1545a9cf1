// The life of a daemon's process: the signals that end it, and what systemd is told of it (ready,
// alive, stopping), when systemd has started it. Owner: none, since both belong to the process.
// Threads: the main thread. Cost: a datagram for each notice. No errors: a daemon without systemd
// tells nobody.
#pragma once

#include <functional>
#include <string>

namespace deltawire {

/// Blocks SIGINT, SIGTERM and SIGHUP in this thread and in threads that it starts, and ignores
/// SIGPIPE. SIGCHLD gets its usual meaning: where a parent has ignored it, the kernel would forget
/// how programs that this process starts have ended. REQUIRES: no other thread has been started.
void BlockTerminationSignals();

/// An exception that nobody catches says on stderr what it was and what to do about it, before it
/// ends the process: where threads or memory are limited, the limits are what to look at.
void ExplainUncaughtExceptions();

/// Tells systemd that the daemon is ready, waits for SIGINT or SIGTERM, tells systemd that the
/// daemon stops, and returns the signal's name. `status` returns the line that `systemctl status`
/// shows. If the unit has a watchdog (WatchdogSec), `status` is called twice in its time, and
/// systemd is told that the daemon is alive each time that it returns. So it shall take the locks
/// that every call takes: a daemon that hangs is killed and started again. At SIGHUP `reload` is
/// called, and systemd is told when it begins and ends.
const char* ServeUntilTermination(const std::function<std::string()>& status,
                                  const std::function<void()>& reload);

}  // namespace deltawire
