#include "tests/support/daemons.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "common/layout/model_dir.h"
#include "proto/convert.h"
#include "proto/dial.h"

namespace deltawire::testing {
namespace fs = std::filesystem;
namespace {

using Clock = std::chrono::steady_clock;

Layout MixedLayout(size_t megabytes) {
  std::vector<TensorMeta> t;
  t.push_back({"model.embed_tokens.weight", DType::kBF16, {megabytes * 128, 1024}});
  for (int i = 0; i < 6; ++i) {
    const std::string p = "model.layers." + std::to_string(i);
    t.push_back({p + ".mlp.weight", DType::kBF16, {megabytes * 64, 1024}});
    t.push_back({p + ".norm.weight", DType::kF32, {1023}});
    t.push_back({p + ".scale", DType::kF8E4M3, {77}});
  }
  t.push_back({"counter", DType::kI64, {3}});
  t.push_back({"empty", DType::kBF16, {0, 7}});
  t.push_back({"scalar", DType::kF64, {}});
  return *Layout::Create(std::move(t));
}

constexpr std::chrono::minutes kLongCall{5};  // one that a whole pull may be waited for in

void Prepare(grpc::ClientContext& context, std::chrono::milliseconds deadline) {
  context.set_deadline(std::chrono::system_clock::now() + deadline);
  context.set_wait_for_ready(true);
}

std::string shown_credentials;

}  // namespace

void ShowAs(const std::string& credentials) { shown_credentials = credentials; }

std::shared_ptr<grpc::Channel> Channel(const std::string& address) {
  auto credentials = shown_credentials.empty() ? security::Credentials::None()
                                               : *security::Credentials::Load(shown_credentials);
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 20);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return *DialControl(address, *credentials, args);
}

ShmDir::ShmDir() {
  static std::atomic<int> counter{0};
  std::error_code ec;
  const fs::path root =
      fs::is_directory("/dev/shm", ec) ? fs::path("/dev/shm") : fs::temp_directory_path();
  path_ = root / fmt::format("deltawire-test-{}-{}", getpid(), counter++);
  fs::create_directories(path_);
}

ShmDir::~ShmDir() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

uint16_t FreePort() {
  static std::vector<cli::ReservedPort> reserved;
  auto port = cli::ReservePort();
  if (!port.ok()) throw std::runtime_error(std::string(MessageOf(port.status())));
  return reserved.emplace_back(*std::move(port)).number;
}

std::unique_ptr<cli::ChildProcess> Spawn(const std::string& program, std::vector<std::string> args,
                                         const fs::path& log) {
  args.insert(args.begin(), cli::ProgramDirectory() / program);
  auto child = cli::ChildProcess::Spawn(program, std::move(args), log);
  if (!child.ok()) throw std::runtime_error(std::string(MessageOf(child.status())));
  return *std::move(child);
}

std::string ReadText(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

uint64_t AnonymousBytes(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("RssAnon:")) return std::stoull(line.substr(8)) * 1024;
  }
  return 0;
}

size_t ThreadsOf(pid_t pid) {
  const fs::directory_iterator tasks(fmt::format("/proc/{}/task", pid));
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

SenderProcess::SenderProcess(const fs::path& root, std::vector<std::string> extra)
    : dir_(root / "sender"),
      log_(root / "sender.log"),
      control_(fmt::format("127.0.0.1:{}", FreePort())),
      bulk_port_(FreePort()),
      extra_(std::move(extra)) {
  fs::create_directories(dir_);
  Start();
}

void SenderProcess::Start() {
  std::vector<std::string> args = {"--data-dir",       dir_.string(),
                                   "--control-listen", control_,
                                   "--bulk-listen",    fmt::format("127.0.0.1:{}", bulk_port_)};
  args.insert(args.end(), extra_.begin(), extra_.end());
  child_ = Spawn("deltawire-sender", args, log_);
  const auto channel = Channel(control_);
  orchestrator_ = v1::SenderService::NewStub(channel);
  pulls_ = v1::PullService::NewStub(channel);
}

v1::SenderModelStatus SenderProcess::Status(const std::string& model) {
  v1::SenderStatusRequest request;
  request.set_model(model);
  v1::SenderStatusResponse response;
  grpc::ClientContext context;
  Prepare(context, std::chrono::seconds(20));
  if (!orchestrator_->GetStatus(&context, request, &response).ok() || response.models_size() == 0) {
    return {};
  }
  return response.models(0);
}

StatusOr<v1::VersionInfo> SenderProcess::Rollback(const std::string& model, uint64_t version) {
  v1::RollbackRequest request;
  request.set_model(model);
  request.set_version(version);
  v1::RollbackResponse response;
  grpc::ClientContext context;
  Prepare(context, kLongCall);
  DW_RETURN_IF_ERROR(
      FromGrpc(orchestrator_->Rollback(&context, request, &response), "sender: Rollback"));
  return response.info();
}

ReceiverProcess::ReceiverProcess(const fs::path& root, const std::string& id,
                                 const std::string& sender_control, const std::string& model,
                                 std::vector<std::string> extra, const fs::path& start_from)
    : id_(id),
      model_(model),
      sender_control_(sender_control),
      dir_(root / id),
      start_from_(start_from),
      log_(root / (id + ".log")),
      control_(fmt::format("127.0.0.1:{}", FreePort())),
      extra_(std::move(extra)) {
  Start();
}

void ReceiverProcess::Start() {
  std::string model = fmt::format("{}={}", model_, dir_.native());
  if (!start_from_.empty()) model += " start-from=" + start_from_.native();
  std::vector<std::string> args = {
      "--sender", sender_control_,    "--model", model, "--receiver-id",
      id_,        "--control-listen", control_};
  args.insert(args.end(), extra_.begin(), extra_.end());
  child_ = Spawn("deltawire-receiver", args, log_);
  stub_ = v1::ReceiverService::NewStub(Channel(control_));
}

v1::ReceiverModelStatus ReceiverProcess::Status() {
  v1::ReceiverStatusRequest request;
  request.set_model(model_);
  v1::ReceiverStatusResponse response;
  grpc::ClientContext context;
  Prepare(context, std::chrono::seconds(20));
  if (!stub_->GetStatus(&context, request, &response).ok() || response.models_size() == 0)
    return {};
  return response.models(0);
}

bool ReceiverProcess::WaitCommitted(uint64_t version, std::chrono::milliseconds deadline) {
  return Eventually(
      [&] {
        const auto s = Status();
        return s.committed().epoch() != 0 && s.committed().version() >= version;
      },
      deadline);
}

absl::Status ReceiverProcess::SetPaused(bool paused) {
  grpc::ClientContext context;
  Prepare(context, kLongCall);
  if (paused) {
    v1::PauseRequest request;
    request.set_model(model_);
    v1::PauseResponse response;
    return FromGrpc(stub_->Pause(&context, request, &response), "receiver: Pause");
  }
  v1::ResumeRequest request;
  request.set_model(model_);
  v1::ResumeResponse response;
  return FromGrpc(stub_->Resume(&context, request, &response), "receiver: Resume");
}

StatusOr<std::vector<v1::SyncUpdate>> ReceiverProcess::Sync(bool force_full) {
  v1::SyncRequest request;
  request.set_model(model_);
  request.set_force_full(force_full);
  grpc::ClientContext context;
  Prepare(context, kLongCall);
  const auto stream = stub_->Sync(&context, request);
  std::vector<v1::SyncUpdate> updates;
  for (v1::SyncUpdate update; stream->Read(&update);) updates.push_back(update);
  DW_RETURN_IF_ERROR(FromGrpc(stream->Finish(), "receiver: Sync"));
  return updates;
}

StatusOr<v1::VerifyResponse> ReceiverProcess::Verify(bool repair) {
  v1::VerifyRequest request;
  request.set_model(model_);
  request.set_repair(repair);
  v1::VerifyResponse response;
  grpc::ClientContext context;
  Prepare(context, kLongCall);
  DW_RETURN_IF_ERROR(FromGrpc(stub_->Verify(&context, request, &response), "receiver: Verify"));
  return response;
}

Trainer::Trainer(std::string socket, std::string model, size_t megabytes, uint64_t seed)
    : socket_(std::move(socket)),
      model_(std::move(model)),
      layout_(MixedLayout(megabytes)),
      content_(layout_.total_bytes()),
      random_(seed),
      client_(std::make_unique<TrainerClient>(socket_, model_)) {
  for (size_t i = 0; i + 8 <= content_.size(); i += 8) StoreLe<uint64_t>(&content_[i], random_());
}

void Trainer::Step(double fraction) {
  std::uniform_real_distribution<double> uniform(0, 1);
  for (size_t t = 0; t < layout_.size(); ++t) {
    const unsigned width = DTypeBytes(layout_.tensor(t).dtype);
    const size_t elements = layout_.bytes(t) / width;
    const auto changes =
        static_cast<size_t>(fraction * static_cast<double>(elements) + uniform(random_));
    for (size_t c = 0; c < changes; ++c) {
      std::byte* e = &content_[layout_.offset(t) + (random_() % elements) * width];
      *e = static_cast<std::byte>(static_cast<uint8_t>(*e) + (random_() % 2 == 0 ? 1 : 255));
    }
  }
}

StatusOr<VersionInfo> Trainer::TryPublish(uint64_t version, const std::vector<size_t>& skip,
                                          const std::vector<size_t>& unchanged) {
  DW_RETURN_IF_ERROR(
      client_->Register(layout_, {{"config.json", "{\"model_type\": \"test\"}"}}).status());
  DW_ASSIGN_OR_RETURN(auto offload, client_->Begin(version));
  for (size_t t = 0; t < layout_.size(); ++t) {
    if (std::find(skip.begin(), skip.end(), t) != skip.end()) continue;
    if (std::find(unchanged.begin(), unchanged.end(), t) != unchanged.end()) {
      offload->Unchanged(t);
      continue;
    }
    DW_RETURN_IF_ERROR(
        offload->Write(t, Bytes(content_).subspan(layout_.offset(t), layout_.bytes(t))));
  }
  DW_RETURN_IF_ERROR(offload->Ready());
  return client_->WaitPublished(version);
}

StatusOr<VersionInfo> Trainer::Publish(uint64_t version, std::chrono::milliseconds deadline) {
  const auto end = Clock::now() + deadline;
  while (true) {
    auto published = TryPublish(version);
    const bool again =
        absl::IsUnavailable(published.status()) || absl::IsAborted(published.status()) ||
        absl::IsNotFound(published.status()) || absl::IsCancelled(published.status());
    if (published.ok() || !again || Clock::now() > end) {
      // A sender that was killed right after the publish has it already.
      if (absl::IsFailedPrecondition(published.status())) {
        auto held = client_->WaitPublished(version);
        if (held.ok() && held->identity.id.version == version) return held;
      }
      return published;
    }
  }
}

std::string Trainer::Compare(const fs::path& directory) const {
  auto opened = ModelDir::Open(directory);
  if (!opened.ok()) return std::string(MessageOf(opened.status()));
  const std::string difference = DescribeDifference(layout_, opened->layout());
  if (!difference.empty()) return difference;
  std::string wrong;
  for (size_t t = 0; t < layout_.size(); ++t) {
    const Bytes want = Bytes(content_).subspan(layout_.offset(t), layout_.bytes(t));
    const Bytes got = opened->data(t);
    if (want.size() != got.size() || std::memcmp(want.data(), got.data(), want.size()) != 0) {
      wrong += layout_.tensor(t).name + " differs; ";
    }
  }
  return wrong;
}

}  // namespace deltawire::testing
