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

namespace deltawire {

/// Largest request over TCP, where gRPC reads it whole before anybody asks who has sent it. The
/// largest of ours are a pull's list of suspects and a sync's of receivers.
inline constexpr int kMaxTcpRequest = 4 << 20;

class ControlServer {
 public:
  /// `access` is the gate in front of the services of a TCP port; a socket file needs none, since
  /// only its owner can open it. `address` is "host:port" or "unix:/path". With port 0 the kernel
  /// chooses, and port() says which. A socket file that nobody listens on is replaced. Socket files
  /// have mode 0600.
  static StatusOr<std::unique_ptr<ControlServer>> Start(const std::string& address,
                                                        std::vector<grpc::Service*> services,
                                                        const Access& access);
  ~ControlServer();

  int port() const { return port_; }
  /// Stops the server; calls that still run after `grace` are cancelled.
  void Shutdown(std::chrono::milliseconds grace);

 private:
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> connections_;
  std::unique_ptr<grpc::Server> server_;
  std::optional<Acceptor> acceptor_;  // declared last, so destroyed before the server it feeds
  int port_ = 0;
};

}  // namespace deltawire
