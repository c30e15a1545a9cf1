#include "bench/loopback/cluster.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <mutex>

#include "bench/harness/machine.h"
#include "common/base/human.h"
#include "common/base/receiver_phase.h"
#include "proto/convert.h"

namespace deltawire::bench {
namespace fs = std::filesystem;
namespace {

constexpr std::chrono::seconds kPatience{300};  // for one version, however slow the machine
constexpr std::chrono::hours kLongestRun{6};    // of all cases with one pair of daemons
constexpr size_t kLogLines = 20;

}  // namespace

StatusOr<std::unique_ptr<Cluster>> Cluster::Start(const fs::path& root, const ModelSource& source,
                                                  const ClusterOptions& options, ThreadPool& pool) {
  auto cluster = std::unique_ptr<Cluster>(new Cluster(root, source, pool));
  fs::create_directories(root);
  if (options.tls) {
    cluster->authority_ = std::make_unique<testing::TestAuthority>(root / "keys");
    testing::ShowAs(cluster->authority_->Node("bench"));
  }
  std::vector<std::string> sender_args = cluster->Secured("sender");
  if (!options.eager_diff) sender_args.push_back("--no-eager-diff");
  cluster->sender_ = std::make_unique<testing::SenderProcess>(root, sender_args);
  cluster->sender_memory_ = std::make_unique<MemoryWatch>(cluster->sender_->child().pid());
  cluster->trainer_ =
      std::make_unique<TrainerClient>(cluster->sender_->socket(), kModel, 0, 1, kPatience);
  const Status status = cluster->trainer_->Register(source.layout, source.side_files).status();
  if (!status.ok()) return cluster->Failed(status);
  if (options.receiver) cluster->StartReceiver(options);
  return cluster;
}

void Cluster::StartReceiver(const ClusterOptions& options) {
  std::vector<std::string> args = Secured("receiver");
  args.insert(args.end(), {"--streams", std::to_string(options.streams)});
  if (options.buffers != 0) {
    args.insert(args.end(), {"--buffers", std::to_string(options.buffers)});
  }
  receiver_ = std::make_unique<testing::ReceiverProcess>(root_, "receiver", sender_->control(),
                                                         kModel, args);
  receiver_memory_ = std::make_unique<MemoryWatch>(receiver_->child().pid());
  v1::WatchReceiverVersionsRequest request;
  request.set_model(kModel);
  watch_context_.set_wait_for_ready(true);
  watch_context_.set_deadline(std::chrono::system_clock::now() + kLongestRun);
  commits_ = receiver_->stub().WatchVersions(&watch_context_, request);
}

std::vector<std::string> Cluster::Secured(const std::string& name) const {
  if (authority_ == nullptr) return {};
  return {"--credentials", authority_->Node(name)};
}

Cluster::~Cluster() {
  watch_context_.TryCancel();
  commits_.reset();
  sender_memory_.reset();
  receiver_memory_.reset();
  receiver_.reset();
  trainer_.reset();
  sender_.reset();
  testing::ShowAs("");
  std::error_code ignored;
  fs::remove_all(root_, ignored);
}

Status Cluster::Failed(const Status& status) const {
  std::string text = fmt::format("{}\n--- sender's log\n{}", MessageOf(status),
                                 sender_->child().LogTail(kLogLines));
  if (receiver_) text += "\n--- receiver's log\n" + receiver_->child().LogTail(kLogLines);
  return Status(status.code(), text);
}

StatusOr<Publication> Cluster::Publish(const Weights& weights) {
  const uint64_t version = ++version_;
  Publication out;
  auto start = SteadyClock::now();
  auto offload = trainer_->Begin(version);
  if (!offload.ok()) return Failed(offload.status());
  out.begin_seconds = SecondsSince(start);
  start = SteadyClock::now();
  std::mutex mu;
  Status failure;
  pool_.ParallelFor(source_.layout.size(), [&](size_t t) {
    const Status written = (*offload)->Write(t, weights.tensor(t));
    std::lock_guard lock(mu);
    failure.Update(written);
  });
  out.write_seconds = SecondsSince(start);
  if (failure.ok()) failure = (*offload)->Ready();
  if (!failure.ok()) return Failed(failure);
  offload->reset();
  auto published = trainer_->WaitPublished(version);
  if (!published.ok()) return Failed(published.status());
  out.info = *published;
  return out;
}

StatusOr<v1::CommitInfo> Cluster::WaitCommitted() {
  for (v1::CommitInfo info; commits_->Read(&info);) {
    if (info.id().version() >= version_) return info;
  }
  return Failed(absl::UnavailableError("the receiver's WatchVersions ended"));
}

StatusOr<v1::PullStats> Cluster::Sync(bool force_full) {
  v1::SyncRequest request;
  request.set_model(kModel);
  request.set_force_full(force_full);
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  const auto reader = receiver_->stub().Sync(&context, request);
  v1::SyncUpdate last;
  for (v1::SyncUpdate update; reader->Read(&update);) last = update;
  const Status status = FromGrpc(reader->Finish(), "receiver: Sync");
  if (!status.ok()) return Failed(status);
  if (ParseReceiverPhase(last.phase()) != ReceiverPhase::kCommitted) {
    return Failed(Errorf(StatusCode::kInternal, "Sync ended in phase \"{}\"", last.phase()));
  }
  return last.stats();
}

Status Cluster::Follow(bool follow) {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  if (follow) {
    v1::ResumeRequest request;
    request.set_model(kModel);
    v1::ResumeResponse response;
    return FromGrpc(receiver_->stub().Resume(&context, request, &response), "receiver: Resume");
  }
  v1::PauseRequest request;
  request.set_model(kModel);
  v1::PauseResponse response;
  return FromGrpc(receiver_->stub().Pause(&context, request, &response), "receiver: Pause");
}

std::string Cluster::Compare(const Weights& weights) const {
  const auto opened = ModelDir::Open(receiver_->dir());
  if (!opened.ok()) return std::string(MessageOf(opened.status()));
  const std::string difference = DescribeDifference(source_.layout, opened->layout());
  if (!difference.empty()) return difference;
  for (size_t t = 0; t < source_.layout.size(); ++t) {
    if (!std::ranges::equal(weights.tensor(t), opened->data(t))) {
      return source_.layout.tensor(t).name;
    }
  }
  return "";
}

double Cluster::CpuSeconds() const {
  return bench::CpuSeconds(sender_->child().pid()) + bench::CpuSeconds(receiver_->child().pid());
}

}  // namespace deltawire::bench
