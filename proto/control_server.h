// A daemon's gRPC server, with health and reflection, that shuts down within a deadline. It accepts
// connections itself, because gRPC stops accepting for good once it has found no descriptor free.
// The services must outlive it. A call that is not served by callbacks holds one of gRPC's threads.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/acceptor.h"
#include "common/base/status.h"
#include "proto/access.h"
#include "proto/control_connections.h"

namespace deltawire {

/// Largest request over TCP. Our largest are a pull's list of 65,536 corrupt chunks (320 KiB) and a
/// sync's list of 4,096 receivers with the longest names (524 KiB).
inline constexpr int kMaxTcpRequest = 1 << 20;

class ControlServer {
 public:
  /// `access` is the gate in front of the services of a TCP port. A socket file needs none: its
  /// mode is 0600, so only its owner can open it. `address` is "host:port" or "unix:/path"; an
  /// address in use is kAlreadyExists. With port 0 the kernel chooses, and port() returns the
  /// number. A stale socket file is replaced. `limits` apply to a TCP port.
  static StatusOr<std::unique_ptr<ControlServer>> Start(const std::string& address,
                                                        std::vector<grpc::Service*> services,
                                                        const Access& access,
                                                        const ControlLimits& limits = {});
  ~ControlServer();

  int port() const { return port_; }
  /// Returns the number of connections that were refused or cut because of the limits.
  uint64_t refused() const { return limited_ == nullptr ? 0 : limited_->refused(); }
  /// Stops the server. Calls that still run after `grace` are cancelled.
  void Shutdown(std::chrono::milliseconds grace);

 private:
  std::shared_ptr<ControlConnections> limited_;  // null for a socket file
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> connections_;
  std::unique_ptr<grpc::Server> server_;
  std::optional<Acceptor> acceptor_;  // last, so destroyed before the server that it feeds
  int port_ = 0;
};

}  // namespace deltawire
