#include "receiver/replica.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "common/base/human.h"
#include "receiver/pull_sink.h"

namespace deltawire::receiver {
namespace {

using Clock = std::chrono::steady_clock;

// Waits are cut into slices only to notice callers that have gone.
constexpr std::chrono::milliseconds kSlice{100};
constexpr std::chrono::milliseconds kFirstPause{50};
constexpr std::chrono::milliseconds kLongestPause{2000};
constexpr std::chrono::milliseconds kUnregisteredPause{200};

int64_t UnixNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

StatusOr<std::unique_ptr<Replica>> Replica::Start(const ReplicaOptions& options,
                                                  std::vector<std::unique_ptr<Upstream>> upstreams,
                                                  net::IoThreads& io, ThreadPool& pool,
                                                  CoderRates& rates) {
  DW_ASSIGN_OR_RETURN(DirLock acquired, DirLock::Acquire(options.directory));
  auto lock = std::make_shared<DirLock>(std::move(acquired));
  auto buffer =
      Buffer::Recover(options.directory, lock, {.huge_pages = options.huge_pages, .pool = &pool});
  if (!buffer.ok() && !absl::IsNotFound(buffer.status())) {
    spdlog::warn("model {}: starting anew: {}", options.model, MessageOf(buffer.status()));
  }
  std::unique_ptr<Replica> replica(new Replica(options, std::move(upstreams), io, pool, rates, lock,
                                               buffer.ok() ? std::move(*buffer) : nullptr));
  replica->thread_ = std::thread([raw = replica.get()] { raw->Run(); });
  return replica;
}

Replica::Replica(const ReplicaOptions& options, std::vector<std::unique_ptr<Upstream>> upstreams,
                 net::IoThreads& io, ThreadPool& pool, CoderRates& rates,
                 std::shared_ptr<DirLock> lock, std::unique_ptr<Buffer> buffer)
    : options_(options),
      agents_(upstreams.size()),
      io_(io),
      pool_(pool),
      rates_(rates),
      lock_(std::move(lock)),
      buffer_(std::move(buffer)),
      history_(options.history_bytes),
      part_bytes_(upstreams.size()) {
  for (size_t i = 0; i < agents_.size(); ++i) {
    agents_[i].upstream = std::move(upstreams[i]);
    agents_[i].view.address = agents_[i].upstream->address();
  }
  status_.phase = "starting";
  if (buffer_ == nullptr) return;
  status_.committed = buffer_->committed();
  status_.model_bytes = buffer_->layout().total_bytes();
  status_.fingerprint = buffer_->layout().fingerprint().Hex();
  if (status_.committed.epoch == 0) {
    spdlog::info("model {}: taken up in the middle of an update", options_.model);
    return;
  }
  last_commit_ = Commit{status_.committed, {}, UnixNanos(), 1};
  spdlog::info("model {}: taken up at {}", options_.model, ToString(status_.committed));
}

Replica::~Replica() {
  Stop();
  if (thread_.joinable()) thread_.join();
}

void Replica::Stop() {
  {
    std::lock_guard lock(mu_);
    stopping_ = true;
    for (net::PullClient* client : clients_) client->Cancel();
    cv_.notify_all();
  }
  for (Agent& agent : agents_) agent.upstream->Cancel();
}

void Replica::Run() {
  auto pause = kFirstPause;
  while (true) {
    const auto start = Clock::now();
    const Status ended = Session();
    for (Agent& agent : agents_) agent.upstream->Detach();
    std::unique_lock lock(mu_);
    if (stopping_) return;
    const std::string message(MessageOf(ended));
    if (message != status_.message) spdlog::warn("model {}: {}", options_.model, message);
    status_.attached = false;
    status_.phase = "failed";
    status_.message = message;
    // Whoever waits for a sync learns why there is none.
    sync_status_ = ended;
    sync_done_ = sync_wanted_;
    force_full_ = false;
    remote_requests_.clear();
    cv_.notify_all();
    if (Clock::now() - start > kLongestPause) pause = kFirstPause;
    cv_.wait_for(lock, pause, [this] { return stopping_; });
    if (stopping_) return;
    // A sender that is there and only lacks the model is asked again soon: a trainer is starting.
    pause = std::min(pause * 2, absl::IsNotFound(ended) ? kUnregisteredPause : kLongestPause);
  }
}

Status Replica::Session() {
  DW_ASSIGN_OR_RETURN(std::vector<ModelDescription> descriptions, DescribeAll());
  DW_RETURN_IF_ERROR(PrepareBuffer(std::move(descriptions)));
  DW_RETURN_IF_ERROR(AttachAll());
  return Follow();
}

StatusOr<std::vector<ModelDescription>> Replica::DescribeAll() {
  std::vector<ModelDescription> descriptions;
  std::vector<NamedCoverage> parts;
  for (const Agent& agent : agents_) {
    DW_ASSIGN_OR_RETURN(ModelDescription d, agent.upstream->Describe(options_.model));
    parts.push_back({agent.upstream->address(), d.owned});
    descriptions.push_back(std::move(d));
    const Layout& first = descriptions.front().layout;
    const Layout& layout = descriptions.back().layout;
    if (layout.fingerprint() != first.fingerprint()) {
      return Errorf(StatusCode::kFailedPrecondition,
                    "model \"{}\": agents {} and {} have different layouts: {}; register the same "
                    "tensors_meta with every agent",
                    options_.model, parts.front().name, parts.back().name,
                    DescribeDifference(first, layout));
    }
  }
  const Status partition = CheckPartition(parts);
  if (!partition.ok()) return Annotate(partition, fmt::format("model \"{}\"", options_.model));
  return descriptions;
}

Status Replica::AttachAll() {
  Report first;
  {
    std::lock_guard lock(mu_);
    attachment_ended_ = false;
    for (Agent& agent : agents_) agent.view.newest = {};
    first = MakeReport("idle", 0);
  }
  for (size_t i = 0; i < agents_.size(); ++i) {
    {
      std::lock_guard lock(mu_);
      agents_[i].view.attached = true;
    }
    const auto ended = [this, i](const Status& why) {
      std::lock_guard lock(mu_);
      attachment_ended_ = true;
      agents_[i].view.attached = false;
      if (!why.ok()) status_.message = std::string(MessageOf(why));
      cv_.notify_all();
    };
    const Status attached = agents_[i].upstream->Attach(
        options_.model, first, [this, i](const UpstreamEvent& e) { OnEvent(i, e); }, ended);
    if (attached.ok()) continue;
    ended(attached);
    return attached;
  }
  return absl::OkStatus();
}

Status Replica::PrepareBuffer(std::vector<ModelDescription> descriptions) {
  std::lock_guard buffer_lock(buffer_mu_);
  ModelDescription& description = descriptions.front();
  if (buffer_ != nullptr && buffer_->layout().fingerprint() != description.layout.fingerprint()) {
    spdlog::warn("model {}: the sender has another layout now: {}; starting anew", options_.model,
                 DescribeDifference(description.layout, buffer_->layout()));
    kept_.clear();
    buffer_.reset();
    history_.Forget();
    std::lock_guard lock(mu_);
    suspects_.clear();
  }
  bool side_files_new = false;
  if (buffer_ == nullptr) {
    const uint64_t bytes = description.layout.total_bytes();
    DW_ASSIGN_OR_RETURN(buffer_,
                        Buffer::Create(options_.directory, lock_, std::move(description.layout),
                                       description.digest_seed,
                                       {.huge_pages = options_.huge_pages, .pool = &pool_}));
    spdlog::info("model {}: {} allocated in {}", options_.model, HumanBytes(bytes),
                 options_.directory.string());
    side_files_new = true;
  }
  for (size_t i = 0; i < agents_.size(); ++i) {
    ModelDescription& d = descriptions[i];
    agents_[i].owned_hash = d.owned.hash();
    side_files_new |= agents_[i].side_files_hash != d.side_files_hash;
    agents_[i].side_files = std::move(d.side_files);
    agents_[i].side_files_hash = d.side_files_hash;
  }
  if (side_files_new) DW_RETURN_IF_ERROR(WriteSideFiles());
  std::lock_guard lock(mu_);
  for (size_t i = 0; i < agents_.size(); ++i) {
    agents_[i].view.owned_bytes = descriptions[i].owned.bytes(buffer_->chunks());
    agents_[i].view.owned = std::move(descriptions[i].owned);
  }
  status_.committed = buffer_->committed();
  status_.model_bytes = buffer_->layout().total_bytes();
  status_.fingerprint = buffer_->layout().fingerprint().Hex();
  return absl::OkStatus();
}

Status Replica::WriteSideFiles() {
  // A file that several agents have is the first one's.
  std::map<std::string, const SideFile*> files;
  for (const Agent& agent : agents_) {
    for (const SideFile& f : agent.side_files) files.emplace(f.name, &f);
  }
  std::vector<SideFile> all;
  for (const auto& [name, file] : files) all.push_back(*file);
  const Status written = buffer_->WriteSideFiles(all);
  if (!written.ok()) {  // tried again with the next description
    for (Agent& agent : agents_) agent.side_files_hash = 0;
  }
  return written;
}

bool Replica::PullWanted() const {
  if (sync_wanted_ > sync_done_ || !remote_requests_.empty()) return true;
  return options_.follow && !paused_ && (status_.newest > status_.committed || !suspects_.empty());
}

Status Replica::Follow() {
  std::unique_lock lock(mu_);
  status_.attached = true;
  status_.message.clear();
  const auto wanted = [this] { return stopping_ || attachment_ended_ || PullWanted(); };
  std::chrono::nanoseconds pause{0};
  while (true) {
    status_.phase = paused_ ? "paused" : "idle";
    cv_.notify_all();
    if (options_.scrub_bytes_per_s == 0) {
      cv_.wait(lock, wanted);
    } else {
      while (!cv_.wait_for(lock, pause, wanted)) {
        lock.unlock();
        pause = ScrubSome();
        lock.lock();
      }
    }
    if (stopping_) return absl::CancelledError("stopping");
    if (attachment_ended_) {
      return absl::UnavailableError(
          fmt::format("the connection to the sender ended: {}", status_.message));
    }
    const uint64_t serving = sync_wanted_;
    const std::vector<Request> remote = std::exchange(remote_requests_, {});
    const bool force_full = std::exchange(force_full_, false);
    lock.unlock();
    const Status pulled = Pull(force_full);
    lock.lock();
    sync_done_ = serving;
    sync_status_ = pulled;
    if (!pulled.ok()) status_.message = std::string(MessageOf(pulled));
    cv_.notify_all();
    for (const Request& r : remote) {
      agents_[r.agent].upstream->Send(MakeReport(pulled.ok() ? "committed" : "failed", r.number));
    }
    if (!pulled.ok()) return pulled;
    status_.message.clear();
    SendAll(MakeReport("idle", 0));
  }
}

void Replica::Committed(StateId id, const PullStats& stats) {
  std::lock_guard lock(mu_);
  const bool news = status_.committed != id;
  status_.committed = id;
  status_.newest = std::max(status_.newest, id);
  status_.last_pull = stats;
  status_.bytes_received += stats.payload_bytes;
  status_.repaired_chunks += stats.repaired_chunks;
  status_.refused_chunks += stats.refused_chunks;
  status_.forms += stats.forms;
  status_.history_deltas = history_.deltas();
  status_.history_bytes = history_.bytes();
  if (news || !last_commit_) {
    ++status_.commits;
    const uint64_t serial = last_commit_ ? last_commit_->serial + 1 : 1;
    last_commit_ = Commit{id, stats, UnixNanos(), serial};
    const auto& chunks = stats.forms.chunks;
    spdlog::info(
        "model {}: {} committed: {} in {} ({} chunks whole, {} by delta ({} fast, {} tight, {} "
        "dense), {} repaired)",
        options_.model, ToString(id), HumanBytes(stats.payload_bytes), HumanSeconds(stats.seconds),
        stats.chunks_full, stats.chunks_delta, chunks[1], chunks[2], chunks[3],
        stats.repaired_chunks);
  } else {
    last_commit_->stats = stats;
  }
  cv_.notify_all();
}

void Replica::OnEvent(size_t agent, const UpstreamEvent& event) {
  std::lock_guard lock(mu_);
  agents_[agent].view.newest = event.newest;
  agents_[agent].delta_bytes = event.delta_bytes;
  status_.newest = CommonNewest();
  if (status_.newest.epoch != 0 && status_.newest < status_.committed) {
    status_.message = fmt::format(
        "the sender's newest is {}, older than the {} held here; waiting for a newer one "
        "(`deltawire sync --full` takes the older)",
        agents_.size() == 1 ? ToString(status_.newest) : NewestOfEach(),
        ToString(status_.committed));
    spdlog::warn("model {}: {}", options_.model, status_.message);
  }
  if (event.sync_request != 0) {
    remote_requests_.push_back({agent, event.sync_request});
    force_full_ |= event.force_full;
  }
  cv_.notify_all();
}

// What all have published. A version of one epoch is not that of another, whatever its number.
StateId Replica::CommonNewest() const {
  StateId common = agents_.front().view.newest;
  for (const Agent& agent : agents_) {
    if (agent.view.newest.epoch != common.epoch) return {};
    common = std::min(common, agent.view.newest);
  }
  return common;
}

std::string Replica::NewestOfEach() const {
  std::string text;
  for (const Agent& agent : agents_) {
    text += fmt::format("{}{} at {}", text.empty() ? "" : ", ", agent.view.address,
                        ToString(agent.view.newest));
  }
  return text;
}

void Replica::SendAll(const Report& report) {
  for (Agent& agent : agents_) agent.upstream->Send(report);
}

void Replica::SetPhase(std::string phase) {
  std::lock_guard lock(mu_);
  status_.phase = phase;
  SendAll(MakeReport(std::move(phase), 0));
  cv_.notify_all();
}

Report Replica::MakeReport(std::string phase, uint64_t sync_request) const {
  Report r;
  r.committed = status_.committed;
  r.phase = std::move(phase);
  r.bytes_done = status_.bytes_done;
  r.bytes_total = status_.bytes_total;
  r.message = status_.message;
  r.last_pull = status_.last_pull;
  r.sync_request = sync_request;
  return r;
}

ReplicaStatus Replica::status() const {
  std::lock_guard lock(mu_);
  ReplicaStatus s = status_;
  s.following = options_.follow && !paused_;
  for (const Agent& agent : agents_) s.agents.push_back(agent.view);
  return s;
}

StatusOr<Commit> Replica::Sync(bool force_full,
                               const std::function<void(const ReplicaStatus&)>& progress,
                               const std::function<bool()>& gone) {
  std::unique_lock lock(mu_);
  if (!status_.attached) {
    return Errorf(StatusCode::kUnavailable, "model \"{}\" has no sender: {}", options_.model,
                  status_.message.empty() ? "not connected yet, try again" : status_.message);
  }
  const uint64_t mine = ++sync_wanted_;
  force_full_ |= force_full;
  cv_.notify_all();
  while (sync_done_ < mine) {
    if (stopping_) return absl::UnavailableError("the receiver is stopping");
    cv_.wait_for(lock, kSlice);
    ReplicaStatus now = status_;
    lock.unlock();
    if (gone()) return absl::CancelledError("the caller has gone");
    progress(now);
    lock.lock();
  }
  if (!sync_status_.ok()) return sync_status_;
  return *last_commit_;
}

void Replica::SetPaused(bool paused) {
  std::lock_guard lock(mu_);
  paused_ = paused;
  if (status_.phase == "idle" || status_.phase == "paused") {
    status_.phase = paused ? "paused" : "idle";
  }
  cv_.notify_all();
}

std::optional<Commit> Replica::WaitCommit(uint64_t seen, const std::function<bool()>& gone) {
  std::unique_lock lock(mu_);
  while (!stopping_) {
    if (last_commit_ && last_commit_->serial > seen) return last_commit_;
    if (gone()) return std::nullopt;
    cv_.wait_for(lock, kSlice);
  }
  return std::nullopt;
}

}  // namespace deltawire::receiver
