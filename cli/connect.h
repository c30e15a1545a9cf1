// Connections to the two daemons, with errors that a user can act on. Owner: one command, of each
// dialed channel and its stub. Threads: one at a time. Cost: a TCP connection. Errors:
// UnreachableError (exit code 3) when no daemon answers, with the reason; else the daemon's
// message.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>

#include "cli/command.h"
#include "common/base/status.h"
#include "common/security/credentials.h"
#include "proto/client/diagnosis.h"
#include "proto/deltawire/v1/receiver.grpc.pb.h"
#include "proto/deltawire/v1/sender.grpc.pb.h"

namespace deltawire::cli {

/// Statuses that end the tool with exit code 3 (unreachable) or 2 (usage).
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

/// Names the file of the tool's certificate, token and authorities, for all further dials. Empty:
/// plaintext, and nothing is shown.
void UseCredentials(std::string file);
/// The tool's words for its options about a "sender" or "receiver".
DialWords WordsFor(std::string_view who);
/// What that file holds.
StatusOr<std::shared_ptr<security::Credentials>> ToolCredentials();

/// Dials and waits until connected: fails at once when the connection is refused, else after
/// `timeout` (0: 10 s).
StatusOr<Sender> DialSender(const std::string& address, std::chrono::milliseconds timeout);
StatusOr<Receiver> DialReceiver(const std::string& address, std::chrono::milliseconds timeout);

/// The error of a command that asks whichever daemon runs here, where neither answered.
Status NeitherAnswers(const Common& o, const Status& sender, const Status& receiver);

/// Fails at once, as UnreachableError, when nobody listens on the trainer socket.
Status ProbeSocket(const std::string& path);

/// The time that a command has for all of its calls together.
class TimeBudget {
 public:
  /// 0: without an end.
  explicit TimeBudget(std::chrono::milliseconds total) : total_(total) {}
  /// The time that is left, at least 1 ms; 0: no limit.
  std::chrono::milliseconds left() const;

 private:
  const std::chrono::milliseconds total_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Sets the deadline; 0 sets none.
void SetDeadline(grpc::ClientContext& context, std::chrono::milliseconds timeout);

/// A daemon's answer as our Status, prefixed with the daemon's name and address. A lost connection
/// becomes UnreachableError.
Status Check(const grpc::Status& s, std::string_view who, const std::string& address);

/// Calls `rpc`, a method of the daemon's stub; `timeout` 0: waits for ever.
template <typename Daemon, typename Request, typename Response>
StatusOr<Response> Ask(Daemon& daemon,
                       grpc::Status (Daemon::Stub::*rpc)(grpc::ClientContext*, const Request&,
                                                         Response*),
                       const Request& request, std::chrono::milliseconds timeout) {
  Response response;
  grpc::ClientContext context;
  SetDeadline(context, timeout);
  DW_RETURN_IF_ERROR(
      Check((*daemon.stub.*rpc)(&context, request, &response), Daemon::kName, daemon.address));
  return response;
}

/// `name` if not empty, else the daemon's only model; otherwise an error lists its models.
StatusOr<std::string> ChooseModel(Sender& sender, const std::string& name,
                                  std::chrono::milliseconds timeout);
StatusOr<std::string> ChooseModel(Receiver& receiver, const std::string& name,
                                  std::chrono::milliseconds timeout);

/// `changes`: also ask what the newest version changed in each tensor.
StatusOr<v1::SenderStatusResponse> GetStatus(Sender& sender, const std::string& model,
                                             std::chrono::milliseconds timeout,
                                             bool changes = false);
/// The receivers that are attached; of all models if `model` is empty.
StatusOr<v1::ListReceiversResponse> ListReceivers(Sender& sender, const std::string& model,
                                                  std::chrono::milliseconds timeout);
StatusOr<v1::ReceiverStatusResponse> GetStatus(Receiver& receiver, const std::string& model,
                                               std::chrono::milliseconds timeout);

}  // namespace deltawire::cli
