// Connections to the two daemons, with errors that a user can act on. If no daemon answers, the
// error is an UnreachableError (exit code 3) with the reason; otherwise it has the daemon's
// message. Each dialed channel and its stub belong to one command, on one thread at a time.
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

/// The errors that end the tool with exit code 3 (unreachable) or 2 (usage).
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

/// Sets the file of the tool's certificate, token and authorities, for all further dials. With an
/// empty name, the tool speaks plaintext and sends no credentials.
void UseCredentials(std::string file);
/// Returns the names of the tool's options for a "sender" or "receiver", for messages.
DialWords WordsFor(std::string_view who);
StatusOr<std::shared_ptr<security::Credentials>> ToolCredentials();

/// Dials and waits until connected. Fails at once if the connection is refused, else after
/// `timeout` (0: 10 s).
StatusOr<Sender> DialSender(const std::string& address, std::chrono::milliseconds timeout);
StatusOr<Receiver> DialReceiver(const std::string& address, std::chrono::milliseconds timeout);

/// Returns the error of a command that asks both local daemons, if neither answered.
Status NeitherAnswers(const Common& o, const Status& sender, const Status& receiver);

/// Fails at once with an UnreachableError if no process listens on the trainer socket.
Status ProbeSocket(const std::string& path);

/// The time limit for all calls of one command together.
class TimeBudget {
 public:
  /// 0 means no limit.
  explicit TimeBudget(std::chrono::milliseconds total) : total_(total) {}
  /// Returns the remaining time, at least 1 ms, or 0 for no limit.
  std::chrono::milliseconds left() const;

 private:
  const std::chrono::milliseconds total_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Sets the deadline. 0 sets none.
void SetDeadline(grpc::ClientContext& context, std::chrono::milliseconds timeout);

/// Converts a daemon's answer to our Status, prefixed with the daemon's name and address. A broken
/// connection becomes an UnreachableError.
Status Check(const grpc::Status& s, std::string_view who, const std::string& address);

/// Calls `rpc`, a method of the daemon's stub. With `timeout` 0 it waits without limit.
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

/// Returns `name`, or if empty the daemon's only model. If there are several, the error lists them.
StatusOr<std::string> ChooseModel(Sender& sender, const std::string& name,
                                  std::chrono::milliseconds timeout);
StatusOr<std::string> ChooseModel(Receiver& receiver, const std::string& name,
                                  std::chrono::milliseconds timeout);

/// With `changes`, the answer also has the newest version's changes in each tensor.
StatusOr<v1::SenderStatusResponse> GetStatus(Sender& sender, const std::string& model,
                                             std::chrono::milliseconds timeout,
                                             bool changes = false);
/// Lists the attached receivers of `model`, or of all models if it is empty.
StatusOr<v1::ListReceiversResponse> ListReceivers(Sender& sender, const std::string& model,
                                                  std::chrono::milliseconds timeout);
StatusOr<v1::ReceiverStatusResponse> GetStatus(Receiver& receiver, const std::string& model,
                                               std::chrono::milliseconds timeout);

}  // namespace deltawire::cli
