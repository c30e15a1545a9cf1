// A daemon's gRPC server: serves health and reflection as well, and shuts down within a deadline.
// It accepts connections itself, because gRPC stops accepting for good once it has found no
// descriptor free. Owner: main; the services outlive it. Threads: one, and gRPC's own (a call that
// is not served by callbacks holds one). Errors: kAlreadyExists names an address that is taken.
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

/// Largest request over TCP. The largest of ours are a pull's list of 65,536 suspects (320 KiB) and
/// a sync's of 4,096 receivers with the longest names (524 KiB).
inline constexpr int kMaxTcpRequest = 1 << 20;

class ControlServer {
 public:
  /// `access` is the gate in front of the services of a TCP port; a socket file needs none, since
  /// only its owner can open it. `address` is "host:port" or "unix:/path". With port 0 the kernel
  /// chooses, and port() says which. A socket file that nobody listens on is replaced. Socket files
  /// have mode 0600. `limits` are those of a TCP port.
  static StatusOr<std::unique_ptr<ControlServer>> Start(const std::string& address,
                                                        std::vector<grpc::Service*> services,
                                                        const Access& access,
                                                        const ControlLimits& limits = {});
  ~ControlServer();

  int port() const { return port_; }
  /// Connections that were not taken or were cut, because they were beyond the limits.
  uint64_t refused() const { return limited_ == nullptr ? 0 : limited_->refused(); }
  /// Stops the server; calls that still run after `grace` are cancelled.
  void Shutdown(std::chrono::milliseconds grace);

 private:
  std::shared_ptr<ControlConnections> limited_;  // null: of a socket file
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> connections_;
  std::unique_ptr<grpc::Server> server_;
  std::optional<Acceptor> acceptor_;  // declared last, so destroyed before the server it feeds
  int port_ = 0;
};

}  // namespace deltawire
