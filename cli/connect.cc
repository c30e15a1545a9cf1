#include "cli/connect.h"

#include <grpc/support/log.h>

#include <algorithm>

#include "common/config/options.h"
#include "proto/client/connect.h"
#include "sender/export/client/trainer_socket.h"

namespace deltawire::cli {
namespace {

constexpr const char* kUnreachableTag = "deltawire.dev/unreachable";
constexpr const char* kUsageTag = "deltawire.dev/usage";

std::string credentials_file;  // for this run of the tool

Status Tagged(StatusCode code, std::string message, const char* tag) {
  Status status(code, message);
  status.SetPayload(tag, absl::Cord());
  return status;
}

// Tags the error of a daemon that does not answer, so that the tool exits with code 3.
Status ToolsOwn(const Status& s) {
  if (!absl::IsUnavailable(s)) return s;
  Status own = s;
  own.SetPayload(kUnreachableTag, absl::Cord());
  return own;
}

StatusOr<std::shared_ptr<grpc::Channel>> Dial(std::string_view who, const std::string& address,
                                              std::chrono::milliseconds timeout) {
  auto endpoint = ParseEndpoint(address);
  if (!endpoint.ok()) return UsageError(fmt::format("--{}: {}", who, MessageOf(endpoint.status())));
  DW_ASSIGN_OR_RETURN(const auto credentials, ToolCredentials());
  // gRPC would print each failed handshake on stderr, beside the tool's one line.
  gpr_set_log_function([](gpr_log_func_args*) {});
  auto channel = ConnectControl({who, ToString(*endpoint), *credentials, WordsFor(who)}, timeout);
  if (!channel.ok()) return ToolsOwn(channel.status());
  return channel;
}

template <typename Daemon, typename Response>
StatusOr<std::string> OnlyModel(const Daemon& daemon, const StatusOr<Response>& status) {
  if (!status.ok()) return status.status();
  if (status->models_size() == 1) return status->models(0).model();
  if (status->models_size() == 0) {
    return Errorf(StatusCode::kNotFound, "{} {} has no model yet", Daemon::kName, daemon.address);
  }
  std::string names;
  for (const auto& m : status->models()) names += (names.empty() ? "" : ", ") + m.model();
  return UsageError(fmt::format("{} {} has several models: choose one with --model ({})",
                                Daemon::kName, daemon.address, names));
}

}  // namespace

Status UnreachableError(std::string message) {
  return Tagged(StatusCode::kUnavailable, std::move(message), kUnreachableTag);
}
Status UsageError(std::string message) {
  return Tagged(StatusCode::kInvalidArgument, std::move(message), kUsageTag);
}
bool IsUnreachable(const Status& s) { return s.GetPayload(kUnreachableTag).has_value(); }
bool IsUsage(const Status& s) { return s.GetPayload(kUsageTag).has_value(); }

DialWords WordsFor(std::string_view who) {
  return {.pass_credentials = "pass --credentials FILE, or set DELTAWIRE_CREDENTIALS",
          .credentials = "--credentials (or DELTAWIRE_CREDENTIALS)",
          .pass_address = fmt::format("pass its control address: --{} HOST:PORT", who),
          .more_time = "--timeout SECONDS allows more"};
}

void UseCredentials(std::string file) { credentials_file = std::move(file); }

StatusOr<std::shared_ptr<security::Credentials>> ToolCredentials() {
  if (credentials_file.empty()) return security::Credentials::None();
  auto credentials = security::Credentials::Load(credentials_file);
  if (credentials.ok()) return credentials;
  return UsageError(
      fmt::format("--credentials {}: {}", credentials_file, MessageOf(credentials.status())));
}

StatusOr<Sender> DialSender(const std::string& address, std::chrono::milliseconds timeout) {
  DW_ASSIGN_OR_RETURN(auto channel, Dial(Sender::kName, address, timeout));
  return Sender{address, v1::SenderService::NewStub(channel)};
}

StatusOr<Receiver> DialReceiver(const std::string& address, std::chrono::milliseconds timeout) {
  DW_ASSIGN_OR_RETURN(auto channel, Dial(Receiver::kName, address, timeout));
  return Receiver{address, v1::ReceiverService::NewStub(channel)};
}

Status NeitherAnswers(const Common& o, const Status& sender, const Status& receiver) {
  if (IsAbsent(sender) && IsAbsent(receiver)) {
    return UnreachableError(
        fmt::format("no sender listens at {}, and no receiver at {}; start one, or name others: "
                    "--sender HOST:PORT, --receiver HOST:PORT",
                    o.sender, o.receiver));
  }
  if (IsAbsent(sender) || !IsUnreachable(receiver)) return receiver;
  return sender;
}

Status ProbeSocket(const std::string& path) {
  const Status there = ProbeTrainerSocket(TrainerSocketOf(path), "pass --socket PATH");
  if (absl::IsInvalidArgument(there)) {
    return UsageError(fmt::format("--socket: {}", MessageOf(there)));
  }
  return ToolsOwn(there);
}

std::chrono::milliseconds TimeBudget::left() const {
  if (total_.count() == 0) return total_;
  const auto gone = std::chrono::steady_clock::now() - start_;
  return std::max(std::chrono::milliseconds(1),
                  total_ - std::chrono::floor<std::chrono::milliseconds>(gone));
}

void SetDeadline(grpc::ClientContext& context, std::chrono::milliseconds timeout) {
  if (timeout.count() > 0) context.set_deadline(std::chrono::system_clock::now() + timeout);
}

Status Check(const grpc::Status& s, std::string_view who, const std::string& address) {
  if (s.ok()) return absl::OkStatus();
  DW_ASSIGN_OR_RETURN(const auto credentials, ToolCredentials());
  return ToolsOwn(CheckAnswer(s, {who, address, *credentials, WordsFor(who)}));
}

StatusOr<v1::SenderStatusResponse> GetStatus(Sender& sender, const std::string& model,
                                             std::chrono::milliseconds timeout, bool changes) {
  v1::SenderStatusRequest request;
  request.set_model(model);
  request.set_changes(changes);
  return Ask(sender, &Sender::Stub::GetStatus, request, timeout);
}

StatusOr<v1::ListReceiversResponse> ListReceivers(Sender& sender, const std::string& model,
                                                  std::chrono::milliseconds timeout) {
  v1::ListReceiversRequest request;
  request.set_model(model);
  return Ask(sender, &Sender::Stub::ListReceivers, request, timeout);
}

StatusOr<v1::ReceiverStatusResponse> GetStatus(Receiver& receiver, const std::string& model,
                                               std::chrono::milliseconds timeout) {
  v1::ReceiverStatusRequest request;
  request.set_model(model);
  return Ask(receiver, &Receiver::Stub::GetStatus, request, timeout);
}

StatusOr<std::string> ChooseModel(Sender& sender, const std::string& name,
                                  std::chrono::milliseconds timeout) {
  if (!name.empty()) return name;
  return OnlyModel(sender, GetStatus(sender, "", timeout));
}

StatusOr<std::string> ChooseModel(Receiver& receiver, const std::string& name,
                                  std::chrono::milliseconds timeout) {
  if (!name.empty()) return name;
  return OnlyModel(receiver, GetStatus(receiver, "", timeout));
}

}  // namespace deltawire::cli
