// A Model's own thread: publishes what the ranks have written, rolls back, abandons offloads that
// take too long, scrubs when idle.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "common/base/checksum.h"
#include "common/base/human.h"
#include "common/base/log.h"
#include "common/base/trace.h"
#include "sender/agent/model.h"

namespace deltawire::sender {
namespace {

using Clock = SteadyClock;

constexpr std::chrono::milliseconds kNothingToScrub{500};

/// Agents that roll back to the same version of the same attempt get the same result, so that a
/// receiver can put their parts together.
uint64_t RollbackAttempt(const Identity& target, uint64_t epoch) {
  std::byte text[16];
  StoreLe<uint64_t>(text, target.attempt);
  StoreLe<uint64_t>(text + 8, epoch);
  return std::max<uint64_t>(1, Xxh3(text));
}

}  // namespace

void Model::PublisherLoop() {
  constexpr auto kNever = Clock::time_point::max();
  MutexLock lock(mu_);
  auto scrub_at = options_.scrub_bytes_per_s == 0 ? kNever : Clock::now();
  while (stopped_.ok()) {
    const auto now = Clock::now();
    if (session_.phase() == OffloadPhase::kPublishing && session_.lease() != 0) {
      const ToPublish what = NextPublish();
      lock.unlock();
      (void)Publish(what);
      lock.lock();
    } else if (session_.Expire(now)) {
      TidyAfterSession();
      lock.unlock();
      offload_listeners_.Call();
      lock.lock();
    } else if (const auto stale = incoming_.Stale(session_.lease())) {
      lock.unlock();
      incoming_.Discard(stale);
      lock.lock();
    } else if (now >= scrub_at) {
      lock.unlock();
      const auto pause = ScrubSome();
      lock.lock();
      scrub_at = Clock::now() + std::chrono::duration_cast<Clock::duration>(pause);
    } else if (const auto until = std::min(scrub_at, session_.deadline().value_or(kNever));
               until == kNever) {
      cv_.wait(lock);
    } else {
      cv_.wait_until(lock, until);
    }
  }
}

Model::ToPublish Model::NextPublish() {
  return {.half = InactiveHalf(),
          .to = NextState(session_.version()),
          .attempt = session_.attempt(),
          .rollback = false,
          .offload_seconds = SecondsSince(session_.granted()),
          .waited_seconds = session_.waited_seconds(),
          .unchanged = session_.unchanged(),
          .side_files = next_side_files(),
          .job = job_};
}

StatusOr<VersionInfo> Model::Publish(const ToPublish& what) {
  const auto start = Clock::now();
  VersionInfo info;
  info.ready_unix_nanos = UnixNanos();
  // The lease keeps the base's bytes unchanged: a scrub patches nothing that others read.
  LeasedState base = Lease();
  const StateId from = base.state == nullptr ? StateId{} : base.state->info.id();
  auto diffed = what.job->Finish(from, what.to, what.unchanged, pool_);
  // The next offload drains this very half, and may begin before all receivers have been told.
  base = {};
  info.diff_seconds = SecondsSince(start);
  if (what.job->payload_was_wrong()) payloads_trusted_ = false;
  const Status made = diffed.ok()
                          ? home_->side_files().Keep(ModelHome::UseOf(what.half), what.side_files)
                          : diffed.status();
  if (!made.ok()) {
    {
      MutexLock lock(mu_);
      session_.PublishFailed(Annotate(
          made, fmt::format("model \"{}\", {}: not published", name(), ToString(what.to))));
      TidyAfterSession();
    }
    offload_listeners_.Call();
    return made;
  }
  PublishJob::Result& result = *diffed;
  info.identity = {home_->halves().lineage(), what.to, result.root, what.attempt};
  home_->halves().Commit(what.half, info.identity, *result.digests);
  info.model_bytes = owned_bytes();
  info.elements = home_->owned_elements();
  info.changed_elements = result.changed_elements;
  info.full_bytes = result.full_bytes;
  info.delta_bytes = result.delta_bytes;
  info.trainer_wait_seconds = what.waited_seconds;
  info.offload_seconds = what.offload_seconds;
  info.publish_seconds = SecondsSince(start);
  info.published_unix_nanos = UnixNanos();
  info.rollback = what.rollback;
  info.side_files_hash = what.side_files->hash;
  auto state = store_.Make(info, what.half);
  state->digests = std::move(result.digests);
  state->tensors = std::move(result.tensors);
  state->side_files = what.side_files;
  for (const uint32_t c : result.damaged) state->damaged[c] = 1;
  std::shared_ptr<IncomingVersion> incoming;
  std::shared_ptr<const Published> settled;
  {
    MutexLock lock(mu_);
    // First, since whoever sees the new state may commit it and say so at once.
    history_.Add(info);
    store_.Install(std::move(state), std::move(result.delta));
    ++totals_.published;
    totals_.delta_bytes += info.delta_bytes;
    totals_.trainer_wait_seconds += info.trainer_wait_seconds;
    totals_.publish_seconds += info.publish_seconds;
    session_.Published(info);
    job_ = nullptr;
    incoming = incoming_.Take();
    settled = store_.newest();
    TidyAfterSession();
  }
  offload_listeners_.Call();
  if (incoming != nullptr) incoming_.Settle(*incoming, std::move(settled));
  Tell(info);
  if (changed_) changed_();
  return info;
}

void Model::Tell(const VersionInfo& info) const {
  const double changed = home_->owned_elements() == 0
                             ? 0
                             : static_cast<double>(info.changed_elements) /
                                   static_cast<double>(home_->owned_elements());
  LogInfo("model {}: {} published: {:.2f}% changed, delta {}, in {} {}", name(),
          ToString(info.id()), 100 * changed, HumanBytes(info.delta_bytes + info.full_bytes),
          HumanSeconds(info.publish_seconds), ToString(TraceOf(info.identity)));
  if (!stages_) return;
  stages_({Stage::kWait, info.trainer_wait_seconds, name()});
  stages_({Stage::kOffload, info.offload_seconds, name()});
  stages_({Stage::kDiff, info.diff_seconds, name()});
  stages_({Stage::kPublish, info.publish_seconds, name()});
}

// Rolling back --------------------------------------------------------------------------------

Status Model::CheckUndamaged(const Published& newest, uint64_t version) const {
  for (uint32_t c = 0; c < chunks().size(); ++c) {
    if (newest.damaged[c] == 0) continue;
    return Errorf(StatusCode::kDataLoss,
                  "model \"{}\": tensor {} no longer has its digest in memory, so nothing can be "
                  "made from it; offload version {} again as a new one",
                  name(), layout().tensor(chunks()[c].tensor).name, version);
  }
  return absl::OkStatus();
}

Status Model::Undo(uint32_t half, const Published& newest, const Identity& target) {
  const uint64_t version = target.id.version;
  DW_RETURN_IF_ERROR(CheckUndamaged(newest, version));
  const Bytes from = this->half(newest.half);
  const MutableBytes to = home_->halves().writable(half);
  for (const ByteRange& r : owned().ByteRanges(chunks())) {
    std::memcpy(to.data() + r.first, from.data() + r.first, r.last - r.first);
  }
  std::vector<uint64_t> digests = *newest.digests;
  DW_RETURN_IF_ERROR(store_.UndoInto(to, newest, target, digests));
  // The digests carried along the deltas are right even if the bytes were wrong from the start.
  for (uint32_t c = 0; c < chunks().size(); ++c) {
    const Chunk& chunk = chunks()[c];
    if (!owned().contains(c)) continue;
    if (backend_.digest(key(), to.subspan(chunk.offset, chunk.bytes)) == digests[c]) continue;
    return Errorf(StatusCode::kDataLoss,
                  "model \"{}\": tensor {} no longer has its digest in memory, so it cannot be "
                  "rolled back; nothing was published, offload the version again",
                  name(), layout().tensor(chunk.tensor).name);
  }
  // A scrub may have found damage after the first check, and the copy contains it.
  return CheckUndamaged(newest, version);
}

StatusOr<VersionInfo> Model::Rollback(uint64_t version) {
  const auto start = Clock::now();
  Identity target;
  uint64_t attempt = 0, epoch = 0;
  {
    MutexLock lock(mu_);
    DW_RETURN_IF_ERROR(session_.MayRollBack(SteadyClock::now()));
    DW_ASSIGN_OR_RETURN(target, store_.Reach(version));
    epoch = store_.newest()->info.id().epoch + 1;
    attempt = RollbackAttempt(target, epoch);
    DW_RETURN_IF_ERROR(session_.BeginRollback(version, attempt, SteadyClock::now()));
    TidyAfterSession();
  }
  offload_listeners_.Call();  // an offload may be over
  LogInfo("model {}: {}: rolling back to {} {}", name(), ToString(StateId{epoch, version}),
          ToString(target), ToString(TraceOf(version, attempt)));
  ToPublish what;
  what.half = InactiveHalf();
  what.attempt = attempt;
  what.rollback = true;
  what.unchanged.resize(layout().size());
  LeasedState base = Lease();
  Status undone = PrepareHalf(what.half, &what.waited_seconds);
  if (undone.ok()) undone = Undo(what.half, *base.state, target);
  base.lease.reset();  // as in Publish
  auto was = undone.ok() ? store_.At(target) : undone;
  MutexLock lock(mu_);
  if (!was.ok()) {
    session_.PublishFailed(was.status());
    TidyAfterSession();
    lock.unlock();
    offload_listeners_.Call();
    return was.status();
  }
  what.to = {base.state->info.id().epoch + 1, version};
  what.side_files = (*was)->side_files;
  what.job = job_ = MakeJob(what.half, nullptr);
  job_lease_ = session_.lease();
  lock.unlock();
  what.offload_seconds = SecondsSince(start);
  return Publish(what);
}

std::chrono::nanoseconds Model::ScrubSome() {
  {
    MutexLock lock(mu_);
    if (!session_.idle()) return kNothingToScrub;
  }
  const LeasedState leased = Lease();
  if (leased.state == nullptr || chunks().size() == 0) return kNothingToScrub;
  return TimeAtRate(scrubber_.Some(*leased.state), options_.scrub_bytes_per_s);
}

}  // namespace deltawire::sender
