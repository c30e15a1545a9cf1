#include "bench/loopback/cluster.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <thread>

#include "bench/harness/parallel.h"
#include "common/base/human.h"
#include "common/base/receiver_phase.h"

namespace deltawire::bench {
namespace fs = std::filesystem;
namespace {

constexpr std::chrono::seconds kPatience{300};  // for one version, even on a slow machine
constexpr std::chrono::hours kLongestRun{6};    // of all cases with one pair of daemons
constexpr size_t kLogLines = 20;

}  // namespace

Cluster::Cluster(const fs::path& root, const ModelSource& source, const ClusterOptions& options,
                 ThreadPool& pool)
    : root_(root), source_(source), options_(options), pool_(pool) {
  fs::create_directories(root);
  if (options.tls) {
    authority_ = std::make_unique<testing::TestAuthority>(root / "keys");
    testing::ShowAs(authority_->Node("bench"));
  }
  std::vector<std::string> args = Secured("sender");
  args.insert(args.end(), options.sender.begin(), options.sender.end());
  sender_ = std::make_unique<testing::SenderProcess>(root, args);
  sender_memory_ = std::make_unique<MemoryWatch>(sender_->child().pid());
  trainer_ = std::make_unique<TrainerClient>(sender_->socket(), kModel, 0, 1, kPatience);
}

Status Cluster::Begin(Bytes content) {
  DW_RETURN_IF_ERROR(Register());
  if (options_.receiver) StartReceiver();
  DW_RETURN_IF_ERROR(Publish(content).status());
  return options_.receiver ? WaitCommitted().status() : absl::OkStatus();
}

Status Cluster::Register() {
  const Status status = trainer_->Register(source_.layout, source_.side_files).status();
  return status.ok() ? status : Failed(status);
}

void Cluster::StartReceiver() {
  std::vector<std::string> args = Secured("receiver");
  args.insert(args.end(), {"--streams", std::to_string(options_.streams)});
  if (options_.buffers != 0) {
    args.insert(args.end(), {"--buffers", std::to_string(options_.buffers)});
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

StatusOr<Publication> Cluster::Publish(Bytes content) {
  Publication out;
  const auto start = SteadyClock::now();
  const Status status = [&]() -> Status {
    DW_ASSIGN_OR_RETURN(auto offload, trainer_->Begin(++version_));
    out.begin_seconds = SecondsSince(start);
    const auto begun = SteadyClock::now();
    const Layout& layout = source_.layout;
    const auto write = [&](size_t t) {
      return offload->Write(t, content.subspan(layout.offset(t), layout.bytes(t)));
    };
    if (options_.trainer_bytes_per_s == 0) {
      DW_RETURN_IF_ERROR(ForAll(pool_, layout.size(), write));
    }
    double bytes = 0;
    for (size_t t = 0; t < layout.size() && options_.trainer_bytes_per_s > 0; ++t) {
      // A tensor is complete, and its bytes are marked, when its last byte has arrived.
      bytes += static_cast<double>(layout.bytes(t));
      std::this_thread::sleep_until(
          begun + std::chrono::duration_cast<SteadyClock::duration>(
                      std::chrono::duration<double>(bytes / options_.trainer_bytes_per_s)));
      DW_RETURN_IF_ERROR(write(t));
    }
    out.write_seconds = SecondsSince(begun);
    out.ready = SteadyClock::now();
    DW_RETURN_IF_ERROR(offload->Ready());
    offload.reset();
    DW_ASSIGN_OR_RETURN(out.info, trainer_->WaitPublished(version_));
    return absl::OkStatus();
  }();
  if (!status.ok()) return Failed(status);
  out.seconds = SecondsSince(start);
  return out;
}

StatusOr<v1::CommitInfo> Cluster::WaitCommitted() {
  for (v1::CommitInfo info; commits_->Read(&info);) {
    if (info.id().version() >= version_) return info;
  }
  return Failed(absl::UnavailableError("the receiver's WatchVersions ended"));
}

StatusOr<v1::PullStats> Cluster::Sync(bool force_full) {
  const auto updates = receiver_->Sync(force_full);
  if (!updates.ok()) return Failed(updates.status());
  const v1::SyncUpdate& last = updates->back();
  if (ParseReceiverPhase(last.phase()) != ReceiverPhase::kCommitted) {
    return Failed(Errorf(StatusCode::kInternal, "Sync ended in phase \"{}\"", last.phase()));
  }
  return last.stats();
}

Status Cluster::Follow(bool follow) {
  return receiver_ == nullptr ? absl::OkStatus() : receiver_->SetPaused(!follow);
}

std::string Cluster::Compare(Bytes content) const {
  const auto opened = ModelDir::Open(receiver_->dir());
  if (!opened.ok()) return std::string(MessageOf(opened.status()));
  const std::string difference = DescribeDifference(source_.layout, opened->layout());
  if (!difference.empty()) return difference;
  const Layout& layout = source_.layout;
  for (size_t t = 0; t < layout.size(); ++t) {
    const Bytes wanted = content.subspan(layout.offset(t), layout.bytes(t));
    if (!std::ranges::equal(wanted, opened->data(t))) return layout.tensor(t).name;
  }
  return "";
}

double Cluster::CpuSeconds() const {
  return bench::CpuSeconds(sender_->child().pid()) + bench::CpuSeconds(receiver_->child().pid());
}

}  // namespace deltawire::bench
