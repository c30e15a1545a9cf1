// Connections to the two daemons, and the errors that a user can act on.
// A Daemon is one dialled channel and its stub; one command's, one thread's at a time.
// Errors: UnreachableError (exit code 3) when nobody answers, else the daemon's own words.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>

#include "cli/command.h"
#include "common/base/status.h"
#include "proto/deltawire/v1/receiver.grpc.pb.h"
#include "proto/deltawire/v1/sender.grpc.pb.h"

namespace deltawire::cli {

/// A status that ends the tool with exit code 3, or 2.
Status UnreachableError(std::string message);
Status UsageError(std::string message);
bool IsUnreachable(const Status& s);
bool IsUsage(const Status& s);

struct Sender {
  using Stub = v1::SenderService::Stub;
  static constexpr const char* kName = "sender";
  std::string address;
  std::unique_ptr<Stub> stub;
};

struct Receiver {
  using Stub = v1::ReceiverService::Stub;
  static constexpr const char* kName = "receiver";
  std::string address;
  std::unique_ptr<Stub> stub;
};

/// Dials and waits until the connection stands: fails at once when it is refused, else after
/// `timeout` (0: 10 s).
StatusOr<Sender> DialSender(const std::string& address, std::chrono::milliseconds timeout);
StatusOr<Receiver> DialReceiver(const std::string& address, std::chrono::milliseconds timeout);

/// Fails at once, as UnreachableError, when nobody listens on the trainer socket.
Status ProbeSocket(const std::string& path);

/// Sets the deadline; 0 sets none.
void SetDeadline(grpc::ClientContext& context, std::chrono::milliseconds timeout);

/// A daemon's answer as our Status, prefixed with who was asked. A lost connection is unreachable.
Status Check(const grpc::Status& s, std::string_view who, const std::string& address);

/// `name` when given, else the only model of the daemon; an error lists what there is.
StatusOr<std::string> ChooseModel(Sender& sender, const std::string& name,
                                  std::chrono::milliseconds timeout);
StatusOr<std::string> ChooseModel(Receiver& receiver, const std::string& name,
                                  std::chrono::milliseconds timeout);

/// `changes`: also what the newest version changed per tensor.
StatusOr<v1::SenderStatusResponse> GetStatus(Sender& sender, const std::string& model,
                                             std::chrono::milliseconds timeout,
                                             bool changes = false);
StatusOr<v1::ReceiverStatusResponse> GetStatus(Receiver& receiver, const std::string& model,
                                               std::chrono::milliseconds timeout);

}  // namespace deltawire::cli
