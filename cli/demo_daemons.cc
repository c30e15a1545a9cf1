#include "cli/demo_daemons.h"

#include <unistd.h>

#include <functional>

#include "cli/output.h"
#include "proto/dial.h"

namespace deltawire::cli {
namespace {

constexpr auto kStartLimit = std::chrono::seconds(60);
constexpr auto kCommitLimit = std::chrono::seconds(120);
constexpr auto kSlice = std::chrono::milliseconds(200);
constexpr auto kPause = std::chrono::milliseconds(5);
constexpr size_t kLogLines = 12;

StatusOr<std::string> Program(const std::string& name) {
  const std::string path = (ProgramDirectory() / name).string();
  if (access(path.c_str(), X_OK) == 0) return path;
  return Errorf(StatusCode::kNotFound, "{} is not there: build it, it belongs beside this program",
                path);
}

// Calls `ask` until it returns true. Each call waits for the connection. The pause between two
// calls waits for the process's end, so a daemon that dies is noticed.
Status UntilReady(ChildProcess& child, const std::function<bool(grpc::ClientContext&)>& ask) {
  const auto deadline = std::chrono::steady_clock::now() + kStartLimit;
  while (true) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    SetDeadline(context, kSlice);
    if (ask(context)) return absl::OkStatus();
    if (child.Wait(kPause) >= 0) return child.CheckRunning();
    if (std::chrono::steady_clock::now() > deadline) {
      return Errorf(StatusCode::kDeadlineExceeded, "{} is not ready after {} s", child.name(),
                    kStartLimit.count());
    }
  }
}

std::shared_ptr<grpc::Channel> PatientChannel(const std::string& address) {
  grpc::ChannelArguments args;
  SetControlArguments(args);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 20);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 50);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
}

}  // namespace

StatusOr<std::unique_ptr<DemoDaemons>> DemoDaemons::Start(const DemoPlan& plan,
                                                          const std::string& model) {
  std::unique_ptr<DemoDaemons> daemons(new DemoDaemons(model));
  const Status started = daemons->StartSender(plan);
  if (!started.ok()) return daemons->WithLogs(started);
  return daemons;
}

Status DemoDaemons::StartReceivers(const DemoPlan& plan) {
  for (uint32_t r = 0; r < plan.receivers; ++r) {
    const Status started = StartReceiver(plan, r);
    if (!started.ok()) return WithLogs(started);
  }
  return absl::OkStatus();
}

Status DemoDaemons::StartSender(const DemoPlan& plan) {
  DW_ASSIGN_OR_RETURN(const std::string program, Program("deltawire-sender"));
  DW_ASSIGN_OR_RETURN(ports_.emplace_back(), ReservePort());
  const uint16_t port = ports_.back().number;
  const std::filesystem::path data = plan.directory / "sender";
  sender_address_ = fmt::format("127.0.0.1:{}", port);
  socket_ = (data / "trainer.sock").string();
  DW_ASSIGN_OR_RETURN(auto child,
                      ChildProcess::Spawn("deltawire-sender",
                                          {program, "--data-dir", data.string(), "--control-listen",
                                           sender_address_, "--bulk-listen", "127.0.0.1:0"},
                                          plan.directory / "sender.log"));
  children_.push_back(std::move(child));
  auto stub = v1::SenderService::NewStub(PatientChannel(sender_address_));
  return UntilReady(*children_.back(), [&](grpc::ClientContext& context) {
    v1::SenderStatusResponse response;
    return stub->GetStatus(&context, {}, &response).ok();
  });
}

Status DemoDaemons::StartReceiver(const DemoPlan& plan, uint32_t index) {
  DW_ASSIGN_OR_RETURN(const std::string program, Program("deltawire-receiver"));
  DW_ASSIGN_OR_RETURN(ports_.emplace_back(), ReservePort());
  const uint16_t port = ports_.back().number;
  const std::string name = fmt::format("receiver-{}", index + 1);
  const std::filesystem::path data = plan.directory / name;
  const std::string address = fmt::format("127.0.0.1:{}", port);
  DW_ASSIGN_OR_RETURN(
      auto child,
      ChildProcess::Spawn("deltawire-receiver " + std::to_string(index + 1),
                          {program, "--data-dir", data.string(), "--model", model_, "--sender",
                           sender_address_, "--control-listen", address, "--receiver-id", name,
                           "--streams", std::to_string(plan.streams)},
                          plan.directory / (name + ".log")));
  children_.push_back(std::move(child));
  receivers_.push_back({address, v1::ReceiverService::NewStub(PatientChannel(address))});
  v1::ReceiverStatusResponse response;
  DW_RETURN_IF_ERROR(UntilReady(*children_.back(), [&](grpc::ClientContext& context) {
    const grpc::Status asked = receivers_.back().stub->GetStatus(&context, {}, &response);
    if (!asked.ok()) return false;
    return response.models_size() == 1 && response.models(0).attached();
  }));
  directories_.push_back(response.models(0).directory());
  return absl::OkStatus();
}

StatusOr<v1::CommitInfo> DemoDaemons::WaitCommit(size_t r, uint64_t version) {
  v1::WatchReceiverVersionsRequest request;
  request.set_model(model_);
  grpc::ClientContext context;
  SetDeadline(context, kCommitLimit);
  auto stream = receivers_[r].stub->WatchVersions(&context, request);
  v1::CommitInfo commit;
  while (stream->Read(&commit)) {
    if (commit.id().version() >= version) {
      context.TryCancel();
      return commit;
    }
  }
  const Status ended = Check(stream->Finish(), Receiver::kName, receivers_[r].address);
  return Errorf(StatusCode::kDeadlineExceeded, "version {} was not committed: {}", version,
                ended.ok() ? "the stream ended" : MessageOf(ended));
}

void DemoDaemons::Stop() {
  receivers_.clear();
  while (!children_.empty()) {  // receivers first: they started last
    children_.back()->Stop(std::chrono::seconds(5));
    children_.pop_back();
  }
}

Status DemoDaemons::WithLogs(const Status& s) {
  std::string text(MessageOf(s));
  for (const auto& child : children_) {
    const Status running = child->CheckRunning();
    text += fmt::format("\n  {}; its last lines:\n{}",
                        running.ok() ? child->name() + " runs" : std::string(MessageOf(running)),
                        child->LogTail(kLogLines));
  }
  return Status(s.code(), text);
}

}  // namespace deltawire::cli
