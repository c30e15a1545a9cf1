// A sender's machine: a directory, and the process that serves from it, with the real Agent.
// Owner: the world. Threads: one. Restart takes up what the last process left.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "common/config/options.h"
#include "sender/agent/agent.h"
#include "tests/simulation/network.h"

namespace deltawire::simulation {

class SenderNode : public Node {
 public:
  SenderNode(Network& network, std::string node_name, std::filesystem::path directory,
             const SenderOptions& options);

  /// REQUIRES: no process is alive.
  void Start();
  /// In its own fiber: everything is closed and destroyed, as by SIGTERM.
  void Stop();
  /// As a machine that is set up anew. REQUIRES: no process is alive.
  void Wipe();
  /// Of the process that is alive; null while there is none, or it is starting.
  sender::Agent* agent() const { return agent_; }
  const std::filesystem::path& directory() const { return directory_; }

  /// A call of the model's, from `from`, in this node's process.
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

  Network& network_;
  const std::filesystem::path directory_;
  const SenderOptions options_;
  sender::Agent* agent_ = nullptr;
  bool stopping_ = false;
  uint32_t serving_ = 0;
};

}  // namespace deltawire::simulation
