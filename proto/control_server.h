// A daemon's gRPC server: serves health and reflection, shuts down within a deadline. Connections
// are accepted here, not by gRPC, which never does again after it once found no descriptor free.
// Owner: main; services outlive it. Threads: one, and gRPC's own (a stream holds one while it
// lives). Errors: kAlreadyExists when an address is taken, naming it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/acceptor.h"
#include "common/base/status.h"

namespace deltawire {

class ControlServer {
 public:
  /// `address` is "host:port" or "unix:/path". Port 0: see port(). A stale socket file is replaced
  /// when nobody listens on it, and gets mode 0600.
  static StatusOr<std::unique_ptr<ControlServer>> Start(const std::string& address,
                                                        std::vector<grpc::Service*> services);
  ~ControlServer();

  int port() const { return port_; }
  /// Streams that still run after `grace` are cancelled.
  void Shutdown(std::chrono::milliseconds grace);

 private:
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> connections_;
  std::unique_ptr<grpc::Server> server_;
  std::optional<Acceptor> acceptor_;  // goes before the server that it hands connections to
  int port_ = 0;
};

/// Blocks SIGINT and SIGTERM for this thread and those it starts; call before any is started.
void BlockTerminationSignals();
/// Waits for SIGINT or SIGTERM; returns its name.
const char* WaitForTermination();

}  // namespace deltawire
