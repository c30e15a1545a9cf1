#include "bench/loopback/cluster.h"

#include <grpcpp/grpcpp.h>
#include <sys/stat.h>

#include <algorithm>

#include "common/base/human.h"
#include "common/base/receiver_phase.h"
#include "proto/convert.h"

namespace deltawire::bench {
namespace fs = std::filesystem;
namespace {

constexpr std::chrono::seconds kPatience{300};  // for one version, however slow the machine
constexpr size_t kLogTail = 2000;

std::string Tail(const fs::path& log) {
  const std::string text = testing::ReadText(log);
  return text.size() <= kLogTail ? text : "..." + text.substr(text.size() - kLogTail);
}

uint64_t FilesBeyond(const fs::path& dir, uint64_t buffers) {
  uint64_t bytes = 0;
  std::error_code ec;
  for (const auto& entry : fs::recursive_directory_iterator(dir, ec)) {
    struct stat info {};
    if (lstat(entry.path().c_str(), &info) == 0 && S_ISREG(info.st_mode)) {
      bytes += static_cast<uint64_t>(info.st_blocks) * 512;
    }
  }
  return bytes - std::min(bytes, buffers);
}

}  // namespace

Cluster::Cluster(fs::path root, const ModelSource& source, ThreadPool& pool)
    : root_(std::move(root)), source_(source), pool_(pool) {}

StatusOr<std::unique_ptr<Cluster>> Cluster::Start(const fs::path& root, const ModelSource& source,
                                                  const ClusterOptions& options, ThreadPool& pool) {
  auto cluster = std::unique_ptr<Cluster>(new Cluster(root, source, pool));
  std::error_code ec;
  fs::create_directories(root, ec);
  std::vector<std::string> sender_args;
  if (!options.eager_diff) sender_args.push_back("--no-eager-diff");
  cluster->sender_ = std::make_unique<testing::SenderProcess>(root, sender_args);
  cluster->sender_memory_ = std::make_unique<MemoryWatch>(cluster->sender_->child().pid());
  cluster->trainer_ =
      std::make_unique<TrainerClient>(cluster->sender_->socket(), kModelName, 0, 1, kPatience);
  const Status registered = cluster->trainer_->Register(source.layout, source.side_files).status();
  if (!registered.ok()) return cluster->Failed(registered);
  if (options.receiver) {
    std::vector<std::string> receiver_args = {"--streams", std::to_string(options.streams)};
    if (options.buffers != 0) {
      receiver_args.insert(receiver_args.end(), {"--buffers", std::to_string(options.buffers)});
    }
    cluster->receiver_ = std::make_unique<testing::ReceiverProcess>(
        root, "receiver", cluster->sender_->control(), kModelName, receiver_args);
    cluster->receiver_memory_ = std::make_unique<MemoryWatch>(cluster->receiver_->child().pid());
    cluster->watch_context_ = std::make_unique<grpc::ClientContext>();
    cluster->watch_ = std::thread([c = cluster.get()] { c->WatchCommits(); });
  }
  return cluster;
}

Cluster::~Cluster() {
  if (watch_context_) watch_context_->TryCancel();
  if (watch_.joinable()) watch_.join();
  sender_memory_.reset();
  receiver_memory_.reset();
  receiver_.reset();
  trainer_.reset();
  sender_.reset();
  std::error_code ignored;
  fs::remove_all(root_, ignored);
}

Status Cluster::Failed(const Status& status) const {
  std::string text =
      fmt::format("{}\n--- sender's log\n{}", MessageOf(status), Tail(sender_->log()));
  if (receiver_) text += "\n--- receiver's log\n" + Tail(receiver_->log());
  return Status(status.code(), text);
}

void Cluster::WatchCommits() {
  v1::WatchReceiverVersionsRequest request;
  request.set_model(kModelName);
  watch_context_->set_wait_for_ready(true);
  const auto reader = receiver_->stub().WatchVersions(watch_context_.get(), request);
  for (v1::CommitInfo info; reader->Read(&info);) {
    std::lock_guard lock(mu_);
    commits_.push_back(info);
    committed_.notify_all();
  }
  std::lock_guard lock(mu_);
  watch_ended_ = true;
  committed_.notify_all();
}

StatusOr<Publication> Cluster::Publish(const Workload& workload) {
  const uint64_t version = ++version_;
  Publication out;
  {
    const auto begin = std::chrono::steady_clock::now();
    auto offload = trainer_->Begin(version);
    if (!offload.ok()) return Failed(offload.status());
    out.begin_seconds = SecondsSince(begin);
    const auto start = std::chrono::steady_clock::now();
    std::mutex mu;
    Status failure;
    pool_.ParallelFor(source_.layout.size(), [&](size_t t) {
      const Status written = (*offload)->Write(t, workload.tensor(t));
      std::lock_guard lock(mu);
      if (!written.ok()) failure = written;
    });
    out.write_seconds = SecondsSince(start);
    if (failure.ok()) failure = (*offload)->Ready();
    if (!failure.ok()) return Failed(failure);
  }
  auto published = trainer_->WaitPublished(version);
  if (!published.ok()) return Failed(published.status());
  out.info = *published;
  return out;
}

StatusOr<v1::CommitInfo> Cluster::WaitCommitted(uint64_t version) {
  std::unique_lock lock(mu_);
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    while (!commits_.empty()) {
      const v1::CommitInfo info = commits_.front();
      commits_.pop_front();
      if (info.id().version() >= version) return info;
    }
    if (watch_ended_) return Failed(absl::UnavailableError("the receiver's WatchVersions ended"));
    if (committed_.wait_until(lock, end) == std::cv_status::timeout) {
      return Failed(Errorf(StatusCode::kDeadlineExceeded, "version {} was not committed in {} s",
                           version, kPatience.count()));
    }
  }
}

StatusOr<v1::PullStats> Cluster::Sync(bool force_full) {
  v1::SyncRequest request;
  request.set_model(kModelName);
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
    request.set_model(kModelName);
    v1::ResumeResponse response;
    return FromGrpc(receiver_->stub().Resume(&context, request, &response), "receiver: Resume");
  }
  v1::PauseRequest request;
  request.set_model(kModelName);
  v1::PauseResponse response;
  return FromGrpc(receiver_->stub().Pause(&context, request, &response), "receiver: Pause");
}

std::string Cluster::Compare(const Workload& workload) const {
  const auto opened = ModelDir::Open(receiver_->dir());
  if (!opened.ok()) return std::string(MessageOf(opened.status()));
  const std::string difference = DescribeDifference(source_.layout, opened->layout());
  if (!difference.empty()) return difference;
  for (size_t t = 0; t < source_.layout.size(); ++t) {
    if (!std::ranges::equal(workload.tensor(t), opened->data(t))) {
      return source_.layout.tensor(t).name;
    }
  }
  return "";
}

double Cluster::CpuSeconds() const {
  return bench::CpuSeconds(sender_->child().pid()) + bench::CpuSeconds(receiver_->child().pid());
}

uint64_t Cluster::SenderFilesBeyond(uint64_t buffers) const {
  return FilesBeyond(sender_->dir(), buffers);
}
uint64_t Cluster::ReceiverFilesBeyond(uint64_t buffers) const {
  return FilesBeyond(receiver_->dir(), buffers);
}

}  // namespace deltawire::bench
