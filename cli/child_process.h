// A child process whose output goes to a file, and which cannot outlive its parent. The destructor
// kills it. Spawn it from a thread that lives as long as the child may. A program that cannot be
// started looks like one that has exited at once.
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
  /// Appends the child's output to `log`. Signals of the terminal do not reach the child.
  static StatusOr<std::unique_ptr<ChildProcess>> Spawn(const std::string& name,
                                                       std::vector<std::string> command,
                                                       const std::filesystem::path& log);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  bool Running() { return Wait(std::chrono::milliseconds(0)) < 0; }
  /// Returns OK while the child runs, else an error that says how it ended.
  Status CheckRunning();
  /// Waits until the child has ended, and returns its exit status (128 + N for signal N). Returns
  /// -1 if it still runs after `timeout`.
  int Wait(std::chrono::milliseconds timeout);
  /// Sends the child a signal. Does nothing if the child has ended.
  void Signal(int signal) const;
  /// Sends SIGTERM, then SIGKILL after the grace. Returns when the child has ended.
  void Stop(std::chrono::milliseconds grace);
  /// Sends SIGKILL; returns when the child has ended.
  void Kill();

  const std::string& name() const { return name_; }
  /// Returns the last lines of the log, each indented.
  std::string LogTail(size_t lines) const;

 private:
  ChildProcess(std::string name, std::filesystem::path log, pid_t pid);
  std::string name_;
  std::filesystem::path log_;
  pid_t pid_;
  bool ended_ = false;
  int exit_status_ = 0;
};

/// A loopback port that no other process can get from the kernel while this object lives. A program
/// that is given the port can listen there with SO_REUSEADDR, as the daemons do.
struct ReservedPort {
  UniqueFd held;
  uint16_t number = 0;
};
StatusOr<ReservedPort> ReservePort();

/// Returns the directory of the running program's file.
std::filesystem::path ProgramDirectory();

}  // namespace deltawire::cli
