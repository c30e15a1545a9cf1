// A child process whose output goes to a file, and which cannot outlive its parent.
// Owner: the demo, or a test. The destructor kills it.
// Threads: one; it must be spawned by a thread that lives as long as the child may.
// Errors: a program that cannot be started is only seen as one that has exited at once.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/base/acceptor.h"
#include "common/base/status.h"

namespace deltawire::cli {

class ChildProcess {
 public:
  /// stdout and stderr are appended to `log`. Signals of the terminal do not reach the child.
  static StatusOr<std::unique_ptr<ChildProcess>> Spawn(const std::string& name,
                                                       std::vector<std::string> command,
                                                       const std::filesystem::path& log);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  bool Running() { return Wait(std::chrono::milliseconds(0)) < 0; }
  /// Ok while the child runs; else an error that says how it ended.
  Status CheckRunning();
  /// Waits until the child has ended, and returns its exit status (128 + N for signal N); -1 when
  /// it still runs after `timeout`.
  int Wait(std::chrono::milliseconds timeout);
  /// Sends the child a signal; does nothing when the child has ended.
  void Signal(int signal) const;
  /// Sends SIGTERM, and SIGKILL after the grace; returns when the child has ended.
  void Stop(std::chrono::milliseconds grace);
  /// Sends SIGKILL; returns when the child has ended.
  void Kill();

  const std::string& name() const { return name_; }
  /// The last lines of the log, each indented.
  std::string LogTail(size_t lines) const;

 private:
  ChildProcess(std::string name, std::filesystem::path log, pid_t pid);
  std::string name_;
  std::filesystem::path log_;
  pid_t pid_;
  bool ended_ = false;
  int exit_status_ = 0;
};

/// A port of the loopback interface that the kernel gives to nobody else while this lives. Whoever
/// is told of it can listen there with SO_REUSEADDR, as the daemons do.
struct ReservedPort {
  UniqueFd held;
  uint16_t number = 0;
};
StatusOr<ReservedPort> ReservePort();

/// The directory of this program's own file.
std::filesystem::path ProgramDirectory();

}  // namespace deltawire::cli
