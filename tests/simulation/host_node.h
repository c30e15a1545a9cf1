// A machine whose daemon serves pulls: a sender's, or a relay's. Its ports are served from what the
// live process offers. Owner: the world. Threads: fibers of one. Cost: none. Errors: kUnavailable
// while no process serves.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "common/serving/pull_desk.h"
#include "tests/simulation/network.h"

namespace deltawire::simulation {

class HostNode : public Node {
 public:
  HostNode(Network& network, std::string node_name, std::chrono::milliseconds stream_timeout);
  virtual ~HostNode() = default;

  /// The machine of a process that has died starts anew: what its state files say is void, since
  /// the page cache may not have been written. Bytes of files in `directory` may be torn.
  void Reboot(const std::filesystem::path& directory, Random& random);
  /// Of the live process; null when there is none, when it starts, or when it serves nobody.
  PullHost* host() const { return host_; }

  /// Calls the host from node `from`, in a fiber of this node's process.
  template <typename R>
  StatusOr<R> AskHost(const std::string& from, Time timeout,
                      std::function<StatusOr<R>(PullHost&)> ask, CallHandle* handle = nullptr) {
    return network_.Call<R>(
        from, name, timeout,
        [this, ask](const std::function<bool()>&) -> StatusOr<R> {
          if (host_ == nullptr) return absl::UnavailableError("starting");
          return ask(*host_);
        },
        handle);
  }

 protected:
  /// `host` and `source` serve from now on; null: nobody does.
  void Serve(PullHost* host, net::PullSource* source) {
    host_ = host;
    source_ = source;
  }
  /// Waits until no fiber serves, as gRPC's shutdown does: also calls that come while it ends the
  /// others. Fails the history after `limit`.
  void AwaitServed(Time limit);

  Network& network_;
  uint64_t boots_ = 0;
  uint32_t serving_ = 0;  // fibers that serve a connection, and hold the host

 private:
  PullHost* host_ = nullptr;
  net::PullSource* source_ = nullptr;
};

}  // namespace deltawire::simulation
