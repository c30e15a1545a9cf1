// The trainer's side of a Model: the half is prepared and granted, ranks are watched and waited
// for.
#include <chrono>

#include "common/base/attempt.h"
#include "common/base/call_end.h"
#include "common/base/human.h"
#include "common/base/log.h"
#include "common/base/trace.h"
#include "sender/agent/model.h"

namespace deltawire::sender {
namespace {

// How often a waiting call checks whether its caller has gone; other events wake it at once.
constexpr std::chrono::milliseconds kGoneSlice{50};

}  // namespace

uint32_t Model::InactiveHalf() const {
  const auto newest = store_.newest();
  return newest == nullptr ? 0 : 1 - newest->half;
}

StateId Model::NextState(uint64_t version) const {
  const auto newest = store_.newest();
  if (newest == nullptr) return {1, version};
  const StateId now = newest->info.id();
  const bool later = version > now.version || (version == now.version && !owned().all());
  return {later ? now.epoch : now.epoch + 1, version};
}

void Model::TidyAfterSession() {
  if (job_ != nullptr && job_lease_ != session_.lease()) job_->Cancel();
  cv_.notify_all();
}

StatusOr<OffloadGrant> Model::BeginOffload(const OffloadRequest& request, const Gone& gone) {
  const uint64_t drawn = DrawAttempt();
  OffloadSession::Begun begun;
  {
    MutexLock lock(mu_);
    while (true) {
      if (!stopped_.ok()) return stopped_;
      const auto newest = store_.newest();
      auto step = session_.Begin(request, newest ? newest->info.identity : Identity{}, drawn,
                                 SteadyClock::now());
      if (!step.ok()) return step.status();
      begun = *step;
      if (begun.next != OffloadSession::Next::kWait) {
        TidyAfterSession();
        break;
      }
      // Nothing has changed. Ranks that wait here would wake each other over and over.
      if (gone()) return CallerGone();
      cv_.wait_for(lock, kGoneSlice);
    }
  }
  offload_listeners_.Call();  // an older offload may be over
  // A client that begins anew has dropped what it had begun before.
  home_->halves().LetGoOf(request.client, request.rank);
  if (begun.next == OffloadSession::Next::kDrain) {
    const uint32_t half = InactiveHalf();
    double waited = 0;
    const Status ready = PrepareHalf(half, &waited);
    MutexLock lock(mu_);
    session_.Drained(begun.lease, ready, waited, SteadyClock::now());
    if (ready.ok()) {
      job_lease_ = begun.lease;
      job_ = MakeJob(half, BeginIncoming());
      trainer_diffs_on_.clear();
    }
    if (session_.writing(begun.lease)) {
      LogInfo("model {}: {}: rank {} of {} begins to write, after {} for its half {}", name(),
              ToString(NextState(request.version)), request.rank, request.world,
              HumanSeconds(waited), ToString(TraceOf(request.version, session_.attempt())));
    }
    TidyAfterSession();
    if (!ready.ok()) {
      lock.unlock();
      offload_listeners_.Call();  // it has ended the offload
      return ready;
    }
  }
  auto grant = Grant(request, begun.lease, gone);
  // A rank whose caller has gone ends the offload for all, and the others wait for news of that.
  if (!grant.ok()) offload_listeners_.Call();
  return grant;
}

StatusOr<OffloadGrant> Model::Grant(const OffloadRequest& request, uint64_t lease,
                                    const Gone& gone) {
  MutexLock lock(mu_);
  if (!session_.writing(lease)) {
    // Another rank has ended the offload since.
    const auto over = session_.Attended(lease, request.rank);
    return over.ok() ? Stopping("sender") : over.status();
  }
  if (gone()) {
    session_.EndAttend(lease, request.rank, true, SteadyClock::now());
    TidyAfterSession();
    return CallerGone();
  }
  const uint32_t half = InactiveHalf();
  home_->halves().Granted(half, {lease, request.rank, request.client, request.publisher});
  const auto newest = store_.newest();
  return OffloadGrant{
      .half_path = home_->halves().path(half),
      .data_offset = home_->halves().data_offset(),
      .waited_seconds = session_.waited_seconds(),
      .lease = lease,
      .attempt = session_.attempt(),
      .published = newest == nullptr ? Identity{} : newest->info.identity,
      .takes_payloads = newest != nullptr && payloads_trusted_ && damaged_chunks() == 0};
}

Status Model::PrepareHalf(uint32_t half, double* waited) {
  std::shared_ptr<PublishJob> last;
  {
    MutexLock lock(mu_);
    last = std::exchange(job_, nullptr);
  }
  if (last != nullptr) {
    last->Cancel();
    last->Join();  // its early diffs read the half
  }
  incoming_.Discard(incoming_.current());
  DW_RETURN_IF_ERROR(home_->halves().Drain(half, options_.grace, cut_, waited));
  const Status fenced = home_->halves().Fence(half, [this] { gpu_.Unpin(); });
  if (!fenced.ok()) {
    home_->halves().GiveBack(half);
    return fenced;
  }
  gpu_.PinAnew();
  home_->halves().BeginWrite(half);
  return absl::OkStatus();
}

std::shared_ptr<IncomingVersion> Model::incoming() const {
  MutexLock lock(mu_);
  return incoming_.Told(session_.lease());
}

std::shared_ptr<IncomingVersion> Model::BeginIncoming() {
  const auto newest = store_.newest();
  // By the rule of `auto`, or fast: other codecs would be made for all receivers, on the cores with
  // which the trainer copies. A GPU diffs what is left at the end.
  const bool fast = options_.codec.value_or(kernels::Codec::kFast) == kernels::Codec::kFast;
  if (!options_.send_early || !fast || !incoming_.has_listener() || newest == nullptr) {
    return nullptr;
  }
  const Identity version{home_->halves().lineage(), NextState(session_.version()), 0,
                         session_.attempt()};
  return incoming_.Begin(session_.lease(), version, *newest, options_.delta_log_bytes / 2);
}

std::shared_ptr<PublishJob> Model::MakeJob(uint32_t half,
                                           const std::shared_ptr<IncomingVersion>& incoming) {
  PublishJob::Inputs in;
  in.chunks = &chunks();
  in.layout = &layout();
  in.owned = &owned();
  in.backend = &backend_;
  in.key = &key();
  in.inactive = home_->halves().writable(half);
  if (const auto newest = store_.newest()) {
    in.active = this->half(newest->half);
    in.active_digests = newest->digests;
    in.active_root = newest->info.identity.root;
    in.published = newest;
    in.gpu = gpu_.diff().get();
    in.lost = [this](uint32_t chunk, bool whole) { scrubber_.BaseLost(chunk, whole); };
    in.changing = [this](uint32_t chunk, Bytes before, bool undoable) {
      store_.Changing(chunk, before, undoable, pulls_ > 0);
    };
  }
  if (incoming != nullptr) {
    in.diffed = [this, half, incoming](uint32_t chunk, uint64_t before, uint64_t after,
                                       Bytes payload) {
      const Chunk& place = chunks()[chunk];
      incoming_.Add(*incoming, chunk, before, after, payload,
                    this->half(half).subspan(place.offset, place.bytes));
    };
  }
  // No single delta may take more than half of the log, or the log would hold nothing else.
  in.payload_limit = options_.delta_log_bytes / 2;
  return std::make_shared<PublishJob>(in);
}

Status Model::Attend(uint64_t lease, uint32_t rank) {
  MutexLock lock(mu_);
  return session_.Attend(lease, rank);
}

StatusOr<bool> Model::Attended(uint64_t lease, uint32_t rank) const {
  MutexLock lock(mu_);
  return AttendedNow(lease, rank);
}

StatusOr<bool> Model::AttendedNow(uint64_t lease, uint32_t rank) const {
  if (!stopped_.ok()) return stopped_;
  return session_.Attended(lease, rank);
}

void Model::EndAttend(uint64_t lease, uint32_t rank) {
  {
    MutexLock lock(mu_);
    const auto ready = AttendedNow(lease, rank);
    session_.EndAttend(lease, rank, ready.ok() && !*ready, SteadyClock::now());
    TidyAfterSession();
  }
  offload_listeners_.Call();
}

void Model::ClientCame(uint64_t client) {
  MutexLock lock(mu_);
  session_.ClientCame(client);
}

void Model::ClientGone(uint64_t client) {
  {
    MutexLock lock(mu_);
    session_.ClientGone(client, SteadyClock::now());
    TidyAfterSession();
  }
  offload_listeners_.Call();
}

Status Model::AwaitReady(uint64_t lease, uint32_t rank, const Gone& gone) {
  MutexLock lock(mu_);
  while (true) {
    const auto ready = AttendedNow(lease, rank);
    const bool left = ready.ok() && !*ready && gone();
    if (!ready.ok() || *ready || left) {
      lock.unlock();
      EndAttend(lease, rank);
      return left ? CallerGone() : ready.status();
    }
    cv_.wait_for(lock, kGoneSlice);
  }
}

Status Model::Abandon(uint64_t lease, uint32_t rank, const std::string& reason) {
  home_->halves().LetGo(lease, rank);
  Status done;
  {
    MutexLock lock(mu_);
    done = session_.Abandon(lease, rank, reason);
    TidyAfterSession();
  }
  offload_listeners_.Call();
  return done;
}

Status Model::MarkWritten(uint64_t lease, const WrittenNotice& notice) {
  std::shared_ptr<PublishJob> job;
  OffloadSession::Final final;
  Status refused;
  {
    MutexLock lock(mu_);
    auto noted = session_.Written(lease, notice);
    TidyAfterSession();
    if (noted.ok()) {
      final = std::move(*noted);
      // Under the lock, so that the last rank is not ready before.
      if (job_ != nullptr) job_->AddPayloads(notice.payloads);
    } else {
      refused = noted.status();
    }
    // These run on the CPU, while the trainer writes; a GPU diffs what is left then.
    if (options_.eager_diff) job = job_;
  }
  if (!refused.ok()) {
    offload_listeners_.Call();  // the offload is over
    return refused;
  }
  if (job != nullptr && !(final.tensors.empty() && final.chunks.empty())) {
    job->MarkWritten(final.tensors, final.chunks, pool_);
  }
  return absl::OkStatus();
}

StatusOr<bool> Model::NotifyReady(const ReadyNotice& notice) {
  auto last = NoteReady(notice);
  offload_listeners_.Call();
  return last;
}

StatusOr<bool> Model::NoteReady(const ReadyNotice& notice) {
  MutexLock lock(mu_);
  const auto newest = store_.newest();
  const TraceId trace = TraceOf(notice.version, session_.attempt());
  const auto granted = session_.granted();
  auto last = session_.Ready(notice, newest ? newest->info.identity : Identity{});
  if (last.ok() && *last) {
    LogInfo("model {}: {}: written by {}, in {} {}", name(), ToString(NextState(notice.version)),
            notice.world == 1 ? "its rank" : fmt::format("all {} ranks", notice.world),
            HumanSeconds(SecondsSince(granted)), ToString(trace));
  }
  // The longest text has the reasons for what went whole.
  if (last.ok() && notice.diffed_on.size() > trainer_diffs_on_.size()) {
    trainer_diffs_on_ = notice.diffed_on;
  }
  // Whether or not Ready failed, the rank writes no more.
  home_->halves().LetGo(notice.lease, notice.rank);
  TidyAfterSession();
  return last;
}

void Model::BeginWait(uint64_t lease) {
  MutexLock lock(mu_);
  session_.Waits(lease, 1);
}

void Model::EndWait(uint64_t lease) {
  MutexLock lock(mu_);
  session_.Waits(lease, -1);
}

std::optional<StatusOr<VersionInfo>> Model::Outcome(uint64_t version, uint64_t lease,
                                                    uint64_t attempt) const {
  MutexLock lock(mu_);
  return OutcomeNow(version, lease, attempt);
}

std::optional<StatusOr<VersionInfo>> Model::OutcomeNow(uint64_t version, uint64_t lease,
                                                       uint64_t attempt) const {
  const auto newest = store_.newest();
  auto outcome = session_.Outcome(version, lease, newest ? newest->info : VersionInfo{}, attempt);
  if (!outcome && !stopped_.ok()) outcome = stopped_;
  return outcome;
}

StatusOr<VersionInfo> Model::WaitPublished(uint64_t version, uint64_t lease, const Gone& gone,
                                           uint64_t attempt) {
  MutexLock lock(mu_);
  session_.Waits(lease, 1);
  while (true) {
    const auto outcome = OutcomeNow(version, lease, attempt);
    if (outcome || gone()) {
      session_.Waits(lease, -1);
      return outcome ? *outcome : CallerGone();
    }
    cv_.wait_for(lock, kGoneSlice);
  }
}

}  // namespace deltawire::sender
