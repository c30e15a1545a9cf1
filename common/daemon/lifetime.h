// The life of a daemon's process: the signals that end it, and its notices to systemd (ready,
// alive, stopping), if systemd has started it. Call it from the main thread.
#pragma once

#include <functional>
#include <string>

namespace deltawire {

/// Blocks SIGINT, SIGTERM and SIGHUP in this thread and in threads that it starts, and ignores
/// SIGPIPE. Restores SIGCHLD's default: if a parent has ignored it, the kernel would discard the
/// exit status of programs that this process starts. REQUIRES: no other thread has been started.
void BlockTerminationSignals();

/// Installs a handler that prints an uncaught exception and a remedy to stderr before it ends the
/// process. If threads or memory are limited, check these limits first.
void ExplainUncaughtExceptions();

/// Notifies systemd that the daemon is ready, waits for SIGINT or SIGTERM, notifies systemd that
/// the daemon stops, and returns the signal's name. `status` returns the line that `systemctl
/// status` shows. If the unit has a watchdog (WatchdogSec), `status` is called twice per period,
/// and each return is reported as a sign of life. So it must take the locks that every call takes:
/// then a daemon that hangs is killed and restarted. SIGHUP calls `reload`, whose begin and end
/// systemd learns too.
const char* ServeUntilTermination(const std::function<std::string()>& status,
                                  const std::function<void()>& reload);

}  // namespace deltawire
