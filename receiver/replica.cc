#include "receiver/replica.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <thread>

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
constexpr int kMaxRepairRounds = 3;

int64_t UnixNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

StatusOr<std::unique_ptr<Replica>> Replica::Start(const ReplicaOptions& options,
                                                  std::unique_ptr<Upstream> upstream,
                                                  net::IoThreads& io, ThreadPool& pool,
                                                  CoderRates& rates) {
  DW_ASSIGN_OR_RETURN(DirLock acquired, DirLock::Acquire(options.directory));
  auto lock = std::make_shared<DirLock>(std::move(acquired));
  auto buffer =
      Buffer::Recover(options.directory, lock, {.huge_pages = options.huge_pages, .pool = &pool});
  if (!buffer.ok() && !absl::IsNotFound(buffer.status())) {
    spdlog::warn("model {}: starting anew: {}", options.model, MessageOf(buffer.status()));
  }
  std::unique_ptr<Replica> replica(new Replica(options, std::move(upstream), io, pool, rates, lock,
                                               buffer.ok() ? std::move(*buffer) : nullptr));
  replica->thread_ = std::thread([raw = replica.get()] { raw->Run(); });
  return replica;
}

Replica::Replica(const ReplicaOptions& options, std::unique_ptr<Upstream> upstream,
                 net::IoThreads& io, ThreadPool& pool, CoderRates& rates,
                 std::shared_ptr<DirLock> lock, std::unique_ptr<Buffer> buffer)
    : options_(options),
      upstream_(std::move(upstream)),
      io_(io),
      pool_(pool),
      rates_(rates),
      lock_(std::move(lock)),
      buffer_(std::move(buffer)),
      history_(options.history_bytes) {
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
    if (client_ != nullptr) client_->Cancel();
    cv_.notify_all();
  }
  upstream_->Cancel();
}

void Replica::Run() {
  auto pause = kFirstPause;
  while (true) {
    const auto start = Clock::now();
    const Status ended = Session();
    upstream_->Detach();
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
  DW_ASSIGN_OR_RETURN(ModelDescription description, upstream_->Describe(options_.model));
  DW_RETURN_IF_ERROR(PrepareBuffer(std::move(description)));
  Report first;
  {
    std::lock_guard lock(mu_);
    attachment_ended_ = false;
    first = MakeReport("idle", 0);
  }
  DW_RETURN_IF_ERROR(upstream_->Attach(
      options_.model, first, [this](const UpstreamEvent& e) { OnEvent(e); },
      [this](const Status& why) {
        std::lock_guard lock(mu_);
        attachment_ended_ = true;
        if (!why.ok()) status_.message = std::string(MessageOf(why));
        cv_.notify_all();
      }));
  return Follow();
}

Status Replica::PrepareBuffer(ModelDescription description) {
  std::lock_guard buffer_lock(buffer_mu_);
  if (buffer_ != nullptr && buffer_->layout().fingerprint() != description.layout.fingerprint()) {
    spdlog::warn("model {}: the sender has another layout now: {}; starting anew", options_.model,
                 DescribeDifference(description.layout, buffer_->layout()));
    buffer_.reset();
    history_.Forget();
    std::lock_guard lock(mu_);
    suspects_.clear();
  }
  if (buffer_ == nullptr) {
    const uint64_t bytes = description.layout.total_bytes();
    DW_ASSIGN_OR_RETURN(buffer_,
                        Buffer::Create(options_.directory, lock_, std::move(description.layout),
                                       description.digest_seed,
                                       {.huge_pages = options_.huge_pages, .pool = &pool_}));
    spdlog::info("model {}: {} allocated in {}", options_.model, HumanBytes(bytes),
                 options_.directory.string());
    side_files_hash_ = 0;
  }
  if (side_files_hash_ != description.side_files_hash) {
    DW_RETURN_IF_ERROR(buffer_->WriteSideFiles(description.side_files));
    side_files_hash_ = description.side_files_hash;
  }
  std::lock_guard lock(mu_);
  status_.committed = buffer_->committed();
  status_.model_bytes = buffer_->layout().total_bytes();
  status_.fingerprint = buffer_->layout().fingerprint().Hex();
  return absl::OkStatus();
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
    const std::vector<uint64_t> remote = std::exchange(remote_requests_, {});
    const bool force_full = std::exchange(force_full_, false);
    lock.unlock();
    const Status pulled = Pull(force_full);
    lock.lock();
    sync_done_ = serving;
    sync_status_ = pulled;
    if (!pulled.ok()) status_.message = std::string(MessageOf(pulled));
    cv_.notify_all();
    for (const uint64_t request : remote) {
      upstream_->Send(MakeReport(pulled.ok() ? "committed" : "failed", request));
    }
    if (!pulled.ok()) return pulled;
    status_.message.clear();
    upstream_->Send(MakeReport("idle", 0));
  }
}

Status Replica::Pull(bool force_full) {
  std::lock_guard buffer_lock(buffer_mu_);
  const auto start = Clock::now();
  PullStats stats;
  StateId id;
  std::vector<uint32_t> bad;
  DW_RETURN_IF_ERROR(MarkSuspects());
  auto last_frame = start;
  for (int round = 0; round == 0 || !bad.empty(); ++round) {
    if (round > kMaxRepairRounds) {
      return Errorf(StatusCode::kDataLoss,
                    "{} chunks still disagree with their digest after {} attempts: check this "
                    "machine's memory",
                    bad.size(), kMaxRepairRounds);
    }
    stats.repaired_chunks += bad.size();
    SetPhase("pulling");
    DW_ASSIGN_OR_RETURN(bad, PullOnce(force_full && round == 0, round > 0, stats, id));
    if (round == 0)
      last_frame = start + std::chrono::duration_cast<Clock::duration>(
                               std::chrono::duration<double>(stats.transfer_seconds));
  }
  if (buffer_->committed() != id) {
    DW_RETURN_IF_ERROR(buffer_->BeginUpdate());
    DW_RETURN_IF_ERROR(buffer_->Commit(id));
  }
  history_.Commit(id);
  stats.apply_seconds = SecondsSince(last_frame);
  stats.seconds = SecondsSince(start);
  const uint64_t moved = stats.chunks_full + stats.chunks_delta;
  stats.chunks_unchanged =
      buffer_->chunks().size() - std::min<uint64_t>(moved, buffer_->chunks().size());
  Committed(id, stats);
  return absl::OkStatus();
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

wire::Have Replica::MakeHave(bool force_full) const {
  wire::Have have = buffer_->have();
  if (force_full) {
    // Also the way to take an older version on purpose: nothing held, so nothing goes backwards.
    have.epoch = have.version = 0;
    for (auto& entry : have.chunks) entry = {};
  } else if (buffer_->committed().epoch != 0) {
    history_.Describe(have);
  }
  return have;
}

PullWish Replica::MakeWish() const {
  // A pull's streams share the I/O threads, of which there is one per core.
  const uint32_t threads =
      std::min(std::max(1u, std::thread::hardware_concurrency()), options_.streams);
  return {buffer_->layout().fingerprint(), options_.streams, rates_.DecodeSpeeds(threads)};
}

StatusOr<std::vector<uint32_t>> Replica::PullOnce(bool force_full, bool repair, PullStats& stats,
                                                  StateId& id) {
  const auto start = Clock::now();
  DW_ASSIGN_OR_RETURN(PullGrant grant, upstream_->OpenPull(options_.model, MakeWish()));
  if (grant.side_files_hash != side_files_hash_) {
    DW_ASSIGN_OR_RETURN(ModelDescription description, upstream_->Describe(options_.model));
    DW_RETURN_IF_ERROR(buffer_->WriteSideFiles(description.side_files));
    side_files_hash_ = description.side_files_hash;
  }
  if (!repair) {
    history_.BeginPull(force_full ? StateId{} : buffer_->committed(), grant.history);
  }
  const wire::Have have = MakeHave(force_full);
  uint64_t expected = 0;
  for (uint32_t i = 0; i < have.chunks.size(); ++i) {
    if (have.chunks[i].version == kVersionUnknown) expected += buffer_->chunks()[i].bytes;
  }
  net::PullTarget target;
  target.host = grant.host;
  target.port = grant.port;
  target.ticket = grant.ticket;
  target.fingerprint = buffer_->layout().fingerprint();
  target.streams = static_cast<uint16_t>(options_.streams);
  target.stream_timeout = options_.stream_timeout;
  net::PullClient client(io_, std::move(target));
  {
    std::lock_guard lock(mu_);
    if (stopping_) return absl::CancelledError("stopping");
    client_ = &client;
    status_.bytes_done = 0;
    status_.bytes_total = expected > 0 ? expected : newest_delta_bytes_;
  }
  PullSink sink(*buffer_, options_.staging_bytes, rates_, history_.view(), history_.recording(),
                [this](uint64_t bytes) { OnProgress(bytes); });
  auto end = client.Run(have, sink);
  // Whatever it is that differs, it must not refuse the next pull's chunks too.
  if (sink.history_misfit()) history_.Forget();
  {
    std::lock_guard lock(mu_);
    client_ = nullptr;
    if (sink.touched()) status_.committed = {};
  }
  if (!end.ok()) return end.status();
  stats.transfer_seconds += SecondsSince(start);
  SetPhase("applying");
  DW_ASSIGN_OR_RETURN(std::vector<uint32_t> bad, sink.Apply(pool_));
  sink.AddTo(stats);
  id = *end;
  return bad;
}

void Replica::OnProgress(uint64_t bytes) {
  constexpr int64_t kEvery = 200'000'000;
  const int64_t now = Clock::now().time_since_epoch().count();
  int64_t last = last_progress_report_.load(std::memory_order_relaxed);
  const bool report =
      now - last > kEvery && last_progress_report_.compare_exchange_strong(last, now);
  std::unique_lock lock(mu_);
  status_.bytes_done = bytes;
  if (!report) return;
  const Report r = MakeReport("pulling", 0);
  lock.unlock();
  upstream_->Send(r);
}

void Replica::OnEvent(const UpstreamEvent& event) {
  std::lock_guard lock(mu_);
  status_.newest = event.newest;
  newest_delta_bytes_ = event.delta_bytes;
  if (event.newest.epoch != 0 && event.newest < status_.committed) {
    status_.message = fmt::format(
        "the sender's newest is {}, older than the {} held here; waiting for a newer one "
        "(`deltawire sync --full` takes the older)",
        ToString(event.newest), ToString(status_.committed));
    spdlog::warn("model {}: {}", options_.model, status_.message);
  }
  if (event.sync_request != 0) {
    remote_requests_.push_back(event.sync_request);
    force_full_ |= event.force_full;
  }
  cv_.notify_all();
}

void Replica::SetPhase(std::string phase) {
  std::lock_guard lock(mu_);
  status_.phase = phase;
  upstream_->Send(MakeReport(std::move(phase), 0));
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
