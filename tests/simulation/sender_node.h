// A sender's machine: a directory, and the process that serves from it, with the real Agent. A
// restart takes up what the last process left. Owner: the world. Threads: one. Cost: a model's
// files. Errors: kUnavailable while no agent runs.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "common/config/options.h"
#include "sender/agent/agent.h"
#include "tests/simulation/host_node.h"

namespace deltawire::simulation {

class SenderNode : public HostNode {
 public:
  SenderNode(Network& network, std::string node_name, std::filesystem::path directory,
             const SenderOptions& options);

  /// REQUIRES: no process is alive.
  void Start();
  /// Stops the process in a fiber of its own: all is closed and destroyed, as by SIGTERM.
  void Stop();
  /// Empties the directory, like a machine that is set up anew. REQUIRES: no process is alive.
  void Wipe();
  /// The agent of the live process; null when there is none, or it is starting.
  sender::Agent* agent() const { return agent_; }
  const std::filesystem::path& directory() const { return directory_; }

  /// Calls the agent from node `from`, in a fiber of this node's process.
  template <typename R>
  StatusOr<R> Ask(const std::string& from, Time timeout,
                  std::function<StatusOr<R>(sender::Agent&, const std::function<bool()>&)> ask,
                  CallHandle* handle = nullptr) {
    return network_.Call<R>(
        from, name, timeout,
        [this, ask](const std::function<bool()>& gone) -> StatusOr<R> {
          if (agent_ == nullptr) return absl::UnavailableError("starting");
          return ask(*agent_, gone);
        },
        handle);
  }

 private:
  struct Daemon;
  void Main();

  const std::filesystem::path directory_;
  const SenderOptions options_;
  sender::Agent* agent_ = nullptr;
  bool stopping_ = false;
};

}  // namespace deltawire::simulation
