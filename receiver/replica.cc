#include "receiver/replica.h"

#include <algorithm>
#include <chrono>

#include "common/base/call_end.h"
#include "common/base/human.h"
#include "common/base/log.h"
#include "common/shm/delta_file.h"
#include "common/shm/mapped_file.h"
#include "receiver/buffer_names.h"
#include "receiver/start_from.h"

namespace deltawire::receiver {
namespace {

using Clock = SteadyClock;

// Waits are cut into slices of this length to notice callers that have gone.
constexpr std::chrono::milliseconds kSlice{100};
constexpr std::chrono::milliseconds kUnregisteredPause{200};

Buffer::Options BufferOptionsOf(const ReplicaOptions& o, ThreadPool& pool) {
  return {.buffers = o.buffers,
          .huge_pages = o.huge_pages,
          .pool = &pool,
          .unsafe_in_place = o.unsafe_in_place};
}

std::vector<Upstream*> Pointers(const std::vector<std::unique_ptr<Upstream>>& upstreams) {
  std::vector<Upstream*> pointers;
  for (const auto& u : upstreams) pointers.push_back(u.get());
  return pointers;
}

std::vector<std::string> Addresses(const std::vector<std::unique_ptr<Upstream>>& upstreams) {
  std::vector<std::string> addresses;
  for (const auto& u : upstreams) addresses.push_back(u->address());
  return addresses;
}

}  // namespace

StatusOr<std::unique_ptr<Replica>> Replica::Start(const ReplicaOptions& options,
                                                  std::vector<std::unique_ptr<Upstream>> upstreams,
                                                  TransportFactory transport, ThreadPool& pool,
                                                  CoderRates& rates) {
  DW_RETURN_IF_ERROR(Buffer::CheckDirectory(options.directory));
  DW_ASSIGN_OR_RETURN(DirLock acquired, DirLock::Acquire(options.directory, options.file_group));
  auto lock = std::make_shared<DirLock>(std::move(acquired));
  auto buffer = Buffer::Recover(options.directory, lock, BufferOptionsOf(options, pool));
  if (absl::IsResourceExhausted(buffer.status()) || absl::IsInternal(buffer.status())) {
    return Annotate(buffer.status(),
                    fmt::format("model {}: its buffer cannot be taken up", options.model));
  }
  if (!buffer.ok() && !absl::IsNotFound(buffer.status())) {
    LogWarn("model {}: {}; replacing its files and pulling the model whole", options.model,
            MessageOf(buffer.status()));
  }
  std::unique_ptr<Replica> replica(new Replica(options, std::move(upstreams), std::move(transport),
                                               pool, rates, lock,
                                               buffer.ok() ? std::move(*buffer) : nullptr));
  replica->keeper_.Start();
  replica->thread_ = Thread([raw = replica.get()] { raw->Run(); });
  return replica;
}

Replica::Replica(const ReplicaOptions& options, std::vector<std::unique_ptr<Upstream>> upstreams,
                 TransportFactory transport, ThreadPool& pool, CoderRates& rates,
                 std::shared_ptr<DirLock> lock, std::unique_ptr<Buffer> buffer)
    : options_(options),
      agents_(upstreams.size()),
      transport_(std::move(transport)),
      pool_(pool),
      rates_(rates),
      lock_(std::move(lock)),
      buffer_(std::move(buffer)),
      gate_({.model = options.model,
             .unsafe_in_place = options.unsafe_in_place,
             .reader_grace = options.reader_grace,
             .copy_for_reader = options.copy_for_reader,
             .downstream = options.downstream},
            [this] { answer_listeners_.Call(); }),
      serving_(options.downstream, options.served_delta_bytes),
      links_(Pointers(upstreams)),
      history_(options.history_bytes, options.served_delta_bytes),
      side_files_(upstreams.size()),
      delta_files_(options.directory / kDeltaFolder, options.delta_file_bytes),
      upkeep_({.model = options.model,
               .scrub_bytes_per_s = options.scrub_bytes_per_s,
               .serves = options.downstream != nullptr}),
      random_(options.seed),
      follower_(Addresses(upstreams), {.follow = options.follow, .seed = options.seed}),
      line_(options.model),
      pull_(upstreams.size()),
      keeper_(options.model, Pointers(upstreams), options.seed, *this) {
  for (size_t i = 0; i < agents_.size(); ++i) {
    agents_[i].upstream = std::move(upstreams[i]);
    agents_[i].view.address = agents_[i].upstream->address();
  }
  if (buffer_ == nullptr) return;
  gate_.TakeUp(*buffer_);
  const Identity committed = buffer_->committed();
  last_whole_ = buffer_->last_whole();
  status_.model_bytes = buffer_->layout().total_bytes();
  status_.fingerprint = buffer_->layout().fingerprint().Hex();
  if (committed.empty()) {
    LogInfo("model {}: taken up in the middle of an update", options_.model);
    return;
  }
  commits_.TakeUp(committed);
  LogInfo("model {}: taken up at {} {}", options_.model, DescribeFully(committed),
          ToString(TraceOf(committed)));
}

Replica::~Replica() {
  Stop();
  Join();
  for (AgentLink& agent : agents_) agent.upstream->Detach();
}

void Replica::Stop() {
  std::shared_ptr<PullRound> round;
  {
    MutexLock lock(mu_);
    stopping_ = true;
    round = pull_.round();
    cv_.notify_all();
  }
  keeper_.Stop();
  gate_.Stop();
  commits_.Notify();
  answer_listeners_.Call();
  if (round != nullptr) round->Cancel();
  for (AgentLink& agent : agents_) agent.upstream->Cancel();
}

void Replica::Join() {
  keeper_.Join();
  if (thread_.joinable()) thread_.join();
}

void Replica::Run() {
  if (buffer_ != nullptr) serving_.Serve(*buffer_);
  MutexLock lock(mu_);
  while (!stopping_) {
    auto again = Clock::time_point::max();
    if (DoNext(&again)) {
      // What was done may be what somebody waits for.
      lock.unlock();
      answer_listeners_.Call();
      lock.lock();
      continue;
    }
    if (again == Clock::time_point::max()) {
      cv_.wait(lock);
    } else {
      cv_.wait_for(lock, std::max<Clock::duration>(again - Clock::now(), Clock::duration(0)));
    }
  }
  Answer(requests_.Take(), Stopping("receiver"));
}

bool Replica::DoNext(Clock::time_point* again) {
  if (buffer_ != nullptr && !describe_) {
    mu_.unlock();  // the file system may be slow
    const bool there = HasItsDirectory();
    mu_.lock();
    if (stopping_) return true;
    if (!there && !describe_) LoseDirectory();
  }
  const auto now = Clock::now();
  if (!follower_.attached()) {
    if (!requests_.waiting()) return DoUpkeep(now, again) || VerifySome();
    Answer(requests_.Take(), line_.WhyNoSender());
    return true;
  }
  if (describe_) {
    *again = describe_at_;
    if (now < describe_at_ && !requests_.waiting()) return VerifySome();
    Describe();
    return true;
  }
  const bool between_pulls = std::exchange(slice_due_, false) && !gate_.committed().empty();
  if (between_pulls && VerifySome()) return true;
  if (requests_.waiting()) {
    Pull({});
    return true;
  }
  auto [what, choice] = NextPlan(now);
  if (what == GroupMember::Do::kDrop) {
    DropPrepared();
    return true;
  }
  if (what == GroupMember::Do::kCommit) {
    CommitPrepared();
    return true;
  }
  if (EarlyIsOver()) {
    DropEarly();
    return true;
  }
  // What the trainer still writes can wait until the hidden file is where its deltas begin.
  if (choice.pull && choice.target.unwritten() && upkeep_.MayCatchUp(UpkeepSituation(), now)) {
    RunUpkeep(Upkeep::Task::kCatchUp);
    return true;
  }
  if (choice.pull) {
    Pull(std::move(choice.target), what == GroupMember::Do::kPrepare);
    return true;
  }
  Rest(choice.why);
  if (GroupReport answer = member_.report(MemberSituation()); answered_ != answer) {
    answered_ = std::move(answer);
    cv_.notify_all();
    mu_.unlock();
    SendAll();
    mu_.lock();
    return true;
  }
  *again = choice.again;
  return DoUpkeep(now, again) || VerifySome();
}

void Replica::Rest(const std::string& why) {
  if (line_.Rest(why, RestingPhase())) answered_.reset();
}

ReceiverPhase Replica::RestingPhase() const {
  if (paused_) return ReceiverPhase::kPaused;
  if (prepared_) return ReceiverPhase::kPrepared;
  return follower_.Common() ? ReceiverPhase::kIdle : ReceiverPhase::kWaitingForVersion;
}

void Replica::Describe() {
  describe_ = false;
  DropPrepared();  // the buffer may be replaced
  mu_.unlock();
  auto descriptions = links_.Describe(options_.model, options_.allow_code_files);
  const Status described = descriptions.status();
  const Status prepared = descriptions.ok() ? PrepareBuffer(std::move(*descriptions)) : described;
  mu_.lock();
  if (prepared.ok()) {
    describe_backoff_.Reset();
    const bool over = line_.phase() == ReceiverPhase::kFailed ||
                      line_.phase() == ReceiverPhase::kWaitingForVersion;
    if (over) line_.Set(ReceiverPhase::kStarting);
    // The directory that was lost came back before it was made anew, so its version is ready again.
    if (gate_.Ready().empty() && !gate_.committed().empty()) {
      mu_.unlock();
      gate_.MakeReady();
      mu_.lock();
    }
    return;
  }
  describe_ = true;
  // A sender that runs but does not have the model yet is asked again soon: its trainer may be
  // starting.
  const auto longest = absl::IsNotFound(described) ? kUnregisteredPause : Backoff::kLongest;
  describe_at_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                    describe_backoff_.Next(random_, longest));
  // A file of this machine that is not found is no wait.
  if (AsksToWait(described)) {
    line_.Wait(std::string(MessageOf(described)), LevelOfWait(described));
  } else {
    line_.Fail(prepared);
  }
  Answer(requests_.Take(), prepared);
}

Status Replica::PrepareBuffer(std::vector<ModelDescription> descriptions) {
  {
    MutexLock lock(mu_);
    using_buffer_ = true;
  }
  const Status made = MakeBuffer(descriptions.front());
  MutexLock lock(mu_);
  using_buffer_ = false;
  cv_.notify_all();
  DW_RETURN_IF_ERROR(made);
  for (size_t i = 0; i < agents_.size(); ++i) {
    AgentLink& agent = agents_[i];
    ModelDescription& d = descriptions[i];
    links_.SetPart(i, d.owned);
    agent.view.owned_bytes = d.owned.bytes(buffer_->chunks());
    agent.view.owned = std::move(d.owned);
    agent.described = d.lineage;
    side_files_.Put(i, d.side_files_hash, std::move(d.side_files));
  }
  gate_.Look(*buffer_);
  status_.model_bytes = buffer_->layout().total_bytes();
  status_.fingerprint = buffer_->layout().fingerprint().Hex();
  return absl::OkStatus();
}

Status Replica::MakeBuffer(ModelDescription& description) {
  if (buffer_ != nullptr && !HasItsDirectory()) {
    buffer_->RemoveFiles();
    DropBuffer();
  }
  if (buffer_ != nullptr && buffer_->layout().fingerprint() != description.layout.fingerprint()) {
    LogWarn("model {}: the sender has another layout now: {}; pulling the model whole",
            options_.model, DescribeChange(buffer_->layout(), description.layout));
    DropBuffer();
  }
  if (buffer_ == nullptr) {
    if (!lock_->IsInPlace()) {
      DW_ASSIGN_OR_RETURN(DirLock again, DirLock::Acquire(options_.directory, options_.file_group));
      lock_ = std::make_shared<DirLock>(std::move(again));
      WarnIfOnDisk(options_.directory);
    }
    const uint64_t bytes = description.layout.total_bytes();
    DW_ASSIGN_OR_RETURN(buffer_,
                        Buffer::Create(options_.directory, lock_, std::move(description.layout),
                                       description.digest_seed, BufferOptionsOf(options_, pool_)));
    LogInfo("model {}: {} allocated in {}", options_.model, HumanBytes(bytes),
            options_.directory.string());
    {
      MutexLock lock(mu_);
      ++buffers_made_;
    }
    if (!options_.start_from.empty()) TakeFirstBytes();
  }
  if (sink_ == nullptr) {
    sink_ = std::make_unique<PullSink>(*buffer_, gate_, options_.staging_bytes, rates_);
    sink_->KeepApplied(buffer_->buffers() == 2 || delta_files_.enabled());
    if (const Status taken = delta_files_.Start(*buffer_); !taken.ok()) {
      LogWarn("model {}: {}", options_.model, MessageOf(taken));
    }
    upkeep_.Look(*buffer_);
    const std::string why = WhyBuffers();
    const bool leases = buffer_->lease_problem().empty() && !options_.unsafe_in_place;
    LogLine(leases ? LogLevel::kInfo : LogLevel::kWarn, "model {}: {} of its weights: {}",
            options_.model, buffer_->buffers() == 2 ? "two buffers" : "one buffer", why);
    MutexLock lock(mu_);
    status_.buffers = buffer_->buffers();
    status_.buffers_why = why;
  }
  return absl::OkStatus();
}

void Replica::DropBuffer() {
  serving_.Drop();
  {
    MutexLock lock(mu_);
    status_.fingerprint.clear();
  }
  sink_.reset();
  buffer_.reset();
  early_ = {};
  history_.Forget();
  links_.ForgetHeld();
  MutexLock lock(mu_);
  suspects_.clear();
  gate_.Forget();
  last_whole_ = {};
}

bool Replica::HasItsDirectory() const {
  std::error_code ignored;
  return lock_->IsInPlace() && std::filesystem::exists(options_.directory / kState, ignored);
}

void Replica::LoseDirectory() {
  line_.Fail(Errorf(StatusCode::kFailedPrecondition,
                    "{} was removed or moved by another process; making it anew{}",
                    options_.directory.native(),
                    options_.follow && !paused_ ? " and pulling the model whole"
                                                : ", and the next sync pulls the model whole"));
  describe_ = true;
  describe_at_ = Clock::now();
  gate_.ForgetVersion();
}

void Replica::TakeFirstBytes() {
  const auto start = SteadyClock::now();
  const std::string from = options_.start_from.string();
  LogInfo("model {}: taking its first bytes from {}", options_.model, from);
  const size_t readers = std::min<size_t>(pool_.size(), 8);
  const auto taken = StartFrom(options_.start_from, *buffer_, readers, [this] {
    MutexLock lock(mu_);
    return stopping_;
  });
  // What is missing comes from the sender, as without this option.
  if (!taken.ok()) {
    LogWarn("model {}: nothing was taken from {}: {}", options_.model, from,
            MessageOf(taken.status()));
    return;
  }
  LogInfo("model {}: {} of {} tensors, {}, taken from {} in {}", options_.model, taken->tensors,
          buffer_->layout().size(), HumanBytes(taken->bytes), from,
          HumanSeconds(SecondsSince(start)));
  if (!taken->first_error.ok()) {
    LogWarn("model {}: {}: {}", options_.model, from, MessageOf(taken->first_error));
  }
  if (taken->others > 0) {
    LogWarn("model {}: {} of the tensors are missing in {}, or have another shape or type there",
            options_.model, taken->others, from);
  }
}

std::string Replica::WhyBuffers() const {
  std::string why = options_.buffers != 0     ? "as configured"
                    : buffer_->buffers() == 2 ? "memory has room for the model twice"
                                              : "memory has no room for the model twice";
  if (options_.unsafe_in_place) return why + "; changed under whoever reads them";
  if (!buffer_->lease_problem().empty()) {
    why += "; every version in a fresh file: " + buffer_->lease_problem();
  }
  return why;
}

Follower::Situation Replica::Situation() const {
  return {.committed = gate_.committed(),
          .last_whole = last_whole_,
          .paused = paused_ && !gate_.half_updated(),
          .requested = requests_.waiting(),
          .suspects = !suspects_.empty(),
          .checking = verifies_.waiting(),
          .member = member_.bound(),
          .one_file = status_.buffers == 1};
}

LogLevel Replica::LevelOfWait(const Status& why) const {
  const bool lost = absl::IsNotFound(why) && !gate_.committed().empty();
  return lost ? LogLevel::kWarn : LogLevel::kInfo;
}

void Replica::SetPauseEnds(bool paused, bool requested) {
  paused_ = paused;
  round_requested_ = requested;
  gate_.SetYielding(paused && !requested);
}

ReceiverPhase Replica::ShownPhase() const {
  return gate_.waits().waiting ? ReceiverPhase::kWaitingForReader : line_.phase();
}

void Replica::SetPhase(ReceiverPhase phase) {
  {
    MutexLock lock(mu_);
    if (!line_.Set(phase)) return;
    cv_.notify_all();
  }
  SendAll();
}

ReplicaStatus Replica::status() const {
  MutexLock lock(mu_);
  ReplicaStatus s = status_;
  s.lost_attachments = keeper_.lost();
  s.following = options_.follow && !paused_;
  s.committed = gate_.committed();
  s.bytes_done = pull_.bytes_done();
  s.bytes_total = pull_.bytes_expected();
  s.phase = ShownPhase();
  s.message = line_.message();
  const BufferGate::Waits waits = gate_.waits();
  s.readers = waits.readers;
  s.reader_wait_seconds = waits.seconds;
  s.worst_reader_wait_seconds = waits.worst;
  s.attached = follower_.attached();
  if (const auto common = follower_.Common()) s.newest = common->whole;
  s.group = member_.group();
  s.prepared = member_.prepared();
  for (size_t i = 0; i < agents_.size(); ++i) {
    AgentView view = agents_[i].view;
    view.newest = follower_.newest(i);
    view.attached = follower_.attached(i);
    view.in_use = agents_[i].upstream->in_use();
    // A relay that is behind would hide how far behind this receiver is.
    const auto told = agents_[i].upstream->sender_newest();
    if (agents_.size() == 1 && told && IsLater(*told, s.newest)) s.newest = *told;
    s.agents.push_back(std::move(view));
  }
  return s;
}

StatusOr<uint64_t> Replica::AskSync(bool force_full) {
  uint64_t request = 0;
  {
    MutexLock lock(mu_);
    if (stopping_) return Stopping("receiver");
    if (!follower_.attached()) {
      return line_.WhyNoSender();
    }
    request = requests_.Add(force_full);
    cv_.notify_all();
  }
  EndEarlyPull();
  return request;
}

StatusOr<std::optional<Commit>> Replica::SyncAnswer(uint64_t request) {
  MutexLock lock(mu_);
  if (const auto answer = requests_.AnswerTo(request)) {
    DW_RETURN_IF_ERROR(*answer);
    return commits_.last();
  }
  if (stopping_) return Stopping("receiver");
  return std::optional<Commit>();
}

void Replica::ForgetSync(uint64_t request) {
  MutexLock lock(mu_);
  requests_.Forget(request);
}

void Replica::SetPaused(bool paused) {
  std::shared_ptr<PullRound> round;
  {
    MutexLock lock(mu_);
    SetPauseEnds(paused, round_requested_);
    cv_.notify_all();
    // A pull that has begun to change the only file (then `committed` is empty) is not cancelled,
    // and is made again if it fails: a half-updated file could not be loaded at all.
    if (paused && !round_requested_ && !gate_.committed().empty()) round = pull_.round();
  }
  if (round != nullptr) round->Cancel();
}

bool Replica::Settled() const {
  MutexLock lock(mu_);
  return stopping_ || !(using_buffer_ || PauseWaits());
}

StatusOr<std::optional<Commit>> Replica::CommitAfter(uint64_t seen) const {
  MutexLock lock(mu_);
  if (stopping_) return Stopping("receiver");
  return commits_.After(seen);
}

}  // namespace deltawire::receiver
