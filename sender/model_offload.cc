// The trainer's side of a Model: hand out the inactive half, collect the ranks, publish, roll back.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "common/base/human.h"
#include "sender/model.h"

namespace deltawire::sender {
namespace {

constexpr uint8_t kWritten = 1;
constexpr uint8_t kUnchanged = 2;
constexpr uint32_t kMaxWorld = 1 << 16;
// A cut stream lets go as soon as its pending send returns; this only bounds a bug.
constexpr std::chrono::seconds kCutTimeout{10};
// How often a call looks whether its caller has gone.
constexpr std::chrono::milliseconds kGoneSlice{50};
constexpr size_t kFailuresKept = 16;
constexpr size_t kMaxReason = 1024;
constexpr size_t kNamed = 5;  // tensors or ranks that a message names

using Clock = std::chrono::steady_clock;

int64_t UnixNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

uint32_t Model::InactiveHalf() const { return published_ == nullptr ? 0 : 1 - published_->half; }

StatusOr<OffloadGrant> Model::BeginOffload(uint64_t version, uint32_t rank, uint32_t world) {
  if (world == 0) world = 1;
  if (version == 0 || version == kVersionUnknown || world > kMaxWorld || rank >= world) {
    return Errorf(StatusCode::kInvalidArgument,
                  "model \"{}\": version {}, rank {} of {}: versions start at 1, ranks at 0", name_,
                  version, rank, world);
  }
  std::unique_lock lock(mu_);
  cv_.wait(lock, [this] {
    return stopping_ || phase_ == OffloadPhase::kIdle || phase_ == OffloadPhase::kWriting;
  });
  if (stopping_) return absl::UnavailableError("the sender is stopping");
  if (published_ != nullptr && version <= published_->info.id.version) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "model \"{}\": version {} is not newer than the published {}; offload a higher "
                  "version, or roll back first",
                  name_, version, ToString(published_->info.id));
  }
  const bool join = phase_ == OffloadPhase::kWriting && offload_.version == version &&
                    offload_.world == world && !offload_.begun.contains(rank);
  if (phase_ == OffloadPhase::kWriting && version < offload_.version && offload_.world == world &&
      !offload_.begun.contains(rank)) {
    // A rank that comes late must not end what the others have gone on to.
    return Errorf(
        StatusCode::kAborted,
        "model \"{}\": version {} was given up, and other ranks have begun version {}; go "
        "on with that one",
        name_, version, offload_.version);
  }
  if (!join) {
    if (phase_ == OffloadPhase::kWriting) {
      AbandonOffload(Errorf(StatusCode::kAborted,
                            "model \"{}\": the offload of version {} was abandoned with {} of {} "
                            "ranks ready, because rank {} began version {}",
                            name_, offload_.version, offload_.ready.size(), offload_.world, rank,
                            version));
    }
    phase_ = OffloadPhase::kDraining;
    double waited = 0;
    const Status drained = DrainInactive(lock, &waited);
    if (!drained.ok()) {
      phase_ = OffloadPhase::kIdle;
      cv_.notify_all();
      return drained;
    }
    offload_ = {};
    offload_.version = version;
    offload_.lease = next_lease_++;
    offload_.world = world;
    offload_.marks.resize(layout_.size());
    offload_.sole.resize(layout_.size());
    offload_.waited = waited;
    offload_.granted = Clock::now();
    offload_.deadline = options_.offload_timeout.count() == 0
                            ? Clock::time_point::max()
                            : offload_.granted + options_.offload_timeout;
    state_.BeginWrite(InactiveHalf());
    StartJob();
    phase_ = OffloadPhase::kWriting;
    cv_.notify_all();
  }
  offload_.begun.insert(rank);
  const BufferFile& half = halves_[InactiveHalf()];
  return OffloadGrant{half.path(), half.data_offset(), offload_.waited, offload_.lease};
}

Status Model::DrainInactive(std::unique_lock<std::mutex>& lock, double* waited) {
  const auto start = Clock::now();
  const uint32_t half = InactiveHalf();
  const auto free = [&] { return stopping_ || readers_[half] == 0; };
  if (!cv_.wait_for(lock, options_.grace, free)) {
    spdlog::warn("model {}: cutting pulls that still read the inactive half after {} ms", name_,
                 options_.grace.count());
    // The callback takes the agent's and the sessions' locks, which are never held under ours.
    lock.unlock();
    if (cut_) cut_(half);
    lock.lock();
    if (!cv_.wait_for(lock, kCutTimeout, free)) {
      return Errorf(StatusCode::kDeadlineExceeded,
                    "model \"{}\": {} reads of the inactive half did not end; this is a bug, "
                    "restart the sender",
                    name_, readers_[half]);
    }
  }
  *waited = SecondsSince(start);
  if (stopping_) return absl::UnavailableError("the sender is stopping");
  return absl::OkStatus();
}

void Model::StartJob() {
  PublishJob::Inputs in;
  in.chunks = &chunks_;
  in.owned = &owned_;
  in.backend = &backend_;
  in.key = &key_;
  in.inactive = halves_[InactiveHalf()].data();
  if (published_ != nullptr) {
    in.active = std::as_const(halves_[published_->half]).data();
    in.active_digests = published_->digests;
    in.published = published_;
    in.gpu = gpu_.get();
  }
  // No single delta may take more of the log than half, or the log would hold nothing else.
  in.payload_limit = options_.delta_log_bytes / 2;
  offload_.job = std::make_shared<PublishJob>(in);
}

void Model::AbandonOffload(Status why) {
  spdlog::warn("{}", MessageOf(why));
  failures_.push_back({offload_.version, offload_.lease, std::move(why)});
  if (failures_.size() > kFailuresKept) failures_.pop_front();
  // Early tasks only read the half; they end within a chunk.
  offload_.job->Cancel();
  offload_ = {};
  phase_ = OffloadPhase::kIdle;
  cv_.notify_all();
}

Status Model::WhyOver(uint64_t lease) const {
  for (const Failure& f : failures_) {
    if (f.lease == lease) return f.why;
  }
  return Errorf(StatusCode::kAborted,
                "model \"{}\": that offload is not under way (it was abandoned, or published); "
                "begin a new one",
                name_);
}

std::string Model::LateRanks() const {
  std::string text;
  size_t late = 0;
  for (uint32_t rank = 0; rank < offload_.world; ++rank) {
    if (offload_.ready.contains(rank) || late++ >= kNamed) continue;
    text += fmt::format("{}rank {} {}", text.empty() ? "" : ", ", rank,
                        offload_.begun.contains(rank) ? "is not ready" : "has not begun");
  }
  return late > kNamed ? fmt::format("{}, and {} more", text, late - kNamed) : text;
}

Status Model::CheckAttendance(uint64_t lease, uint32_t rank) const {
  std::lock_guard lock(mu_);
  if (!Writing(lease)) return WhyOver(lease);
  if (offload_.begun.contains(rank)) return absl::OkStatus();
  return Errorf(StatusCode::kInvalidArgument, "model \"{}\", version {}: rank {} has not begun it",
                name_, offload_.version, rank);
}

Status Model::Attend(uint64_t lease, uint32_t rank, const std::function<bool()>& gone) {
  std::unique_lock lock(mu_);
  while (true) {
    if (stopping_) return absl::UnavailableError("the sender is stopping");
    if (offload_.lease != lease) {
      for (const Failure& f : failures_) {
        if (f.lease == lease) return f.why;
      }
      return absl::OkStatus();  // published
    }
    if (offload_.ready.contains(rank)) return absl::OkStatus();
    if (gone()) {
      AbandonOffload(Errorf(StatusCode::kAborted,
                            "model \"{}\": the offload of version {} was abandoned: rank {} of {} "
                            "has gone before it was ready (its process died, or dropped the "
                            "offload); offload again, as this version or a newer one",
                            name_, offload_.version, rank, offload_.world));
      return absl::CancelledError("the caller has gone");
    }
    cv_.wait_for(lock, kGoneSlice);
  }
}

Status Model::Abandon(uint64_t lease, uint32_t rank, const std::string& reason) {
  std::lock_guard lock(mu_);
  if (!Writing(lease)) return WhyOver(lease);
  AbandonOffload(Errorf(
      StatusCode::kAborted,
      "model \"{}\": the offload of version {} was abandoned by rank {} of {}: {}", name_,
      offload_.version, rank, offload_.world,
      reason.empty() ? "it gave no reason" : std::string_view(reason).substr(0, kMaxReason)));
  return absl::OkStatus();
}

Status Model::MarkWritten(uint64_t lease, const std::vector<uint32_t>& tensors, uint32_t rank,
                          bool sole) {
  for (const uint32_t t : tensors) {
    if (t >= layout_.size()) {
      return Errorf(StatusCode::kInvalidArgument, "model \"{}\": tensor index {} is out of range",
                    name_, t);
    }
  }
  std::shared_ptr<PublishJob> job;
  {
    std::lock_guard lock(mu_);
    if (!Writing(lease)) return WhyOver(lease);
    for (const uint32_t t : tensors) {
      if (!sole) break;
      const uint32_t other = offload_.sole[t];
      if ((other != 0 && other != rank + 1) || offload_.marks[t] != 0) {
        AbandonOffload(Errorf(StatusCode::kFailedPrecondition,
                              "model \"{}\", version {}: rank {} says that it alone writes tensor "
                              "{}, which another rank has written or declared as well",
                              name_, offload_.version, rank, layout_.tensor(t).name));
        return failures_.back().why;
      }
      offload_.sole[t] = rank + 1;
    }
    // Of several ranks, none can know that the others have written their share of a tensor.
    if (offload_.world == 1 || sole) job = offload_.job;
  }
  // Diffed early by the CPU, a chunk's base would have to travel to the GPU again.
  if (options_.eager_diff && gpu_ == nullptr && job != nullptr) job->MarkWritten(tensors, pool_);
  return absl::OkStatus();
}

Status Model::Mark(const ReadyNotice& n) {
  const auto mark = [&](uint32_t t, uint8_t bit) -> Status {
    if (t >= layout_.size()) {
      return Errorf(StatusCode::kInvalidArgument,
                    "model \"{}\", version {}: tensor index {} is out of range", name_, n.version,
                    t);
    }
    const uint32_t sole = offload_.sole[t];
    if (sole != 0 && sole != n.rank + 1) {
      // It may have been diffed already, so this rank's bytes would be missing from the delta.
      return Errorf(StatusCode::kFailedPrecondition,
                    "model \"{}\", version {}: rank {} says that it alone writes tensor {}, which "
                    "rank {} has written or declared as well",
                    name_, n.version, sole - 1, layout_.tensor(t).name, n.rank);
    }
    offload_.marks[t] |= bit;
    return absl::OkStatus();
  };
  for (const uint32_t t : n.written) DW_RETURN_IF_ERROR(mark(t, kWritten));
  for (const uint32_t t : n.unchanged) DW_RETURN_IF_ERROR(mark(t, kUnchanged));
  for (uint32_t t = 0; n.wrote_all && t < layout_.size(); ++t) {
    DW_RETURN_IF_ERROR(mark(t, kWritten));
  }
  return absl::OkStatus();
}

StatusOr<bool> Model::NotifyReady(const ReadyNotice& n) {
  std::unique_lock lock(mu_);
  if (!Writing(n.lease) || offload_.version != n.version) return WhyOver(n.lease);
  if (n.world != offload_.world || !offload_.begun.contains(n.rank) ||
      offload_.ready.contains(n.rank)) {
    return Errorf(StatusCode::kInvalidArgument,
                  "model \"{}\", version {}: rank {} of {} has not begun, or was ready before, or "
                  "the world is not {}",
                  name_, n.version, n.rank, n.world, offload_.world);
  }
  const Status marked = Mark(n);
  if (!marked.ok()) {
    AbandonOffload(marked);
    return marked;
  }
  offload_.ready.insert(n.rank);
  if (offload_.ready.size() < offload_.world) {
    cv_.notify_all();  // its attendance ends
    return false;
  }
  const Status complete = CheckComplete();
  if (!complete.ok()) {
    AbandonOffload(complete);
    return complete;
  }
  phase_ = OffloadPhase::kPublishing;
  cv_.notify_all();
  return true;
}

Status Model::CheckComplete() const {
  std::string missing, both;
  size_t n_missing = 0, n_both = 0;
  const auto note = [&](std::string& list, size_t& count, size_t t) {
    if (count++ < kNamed)
      list += fmt::format("{}{}", list.empty() ? "" : ", ", layout_.tensor(t).name);
  };
  for (size_t t = 0; t < layout_.size(); ++t) {
    if (!owned_.all() && !owned_.Meets({chunks_.first_of_tensor(t), chunks_.end_of_tensor(t)})) {
      continue;
    }
    const uint8_t m = offload_.marks[t];
    if (m == 0) note(missing, n_missing, t);
    if (m == (kWritten | kUnchanged)) note(both, n_both, t);
    if (m == kUnchanged && published_ == nullptr) note(missing, n_missing, t);
  }
  if (n_missing > 0) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "model \"{}\", version {}: {} of {} tensors were neither written nor (with a "
                  "version to carry over from) declared unchanged: {}{}; {} stays published",
                  name_, offload_.version, n_missing, layout_.size(), missing,
                  n_missing > kNamed ? ", ..." : "",
                  ToString(published_ == nullptr ? StateId{} : published_->info.id));
  }
  if (n_both > 0) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "model \"{}\", version {}: {} tensors were written by one rank and declared "
                  "unchanged by another: {}{}",
                  name_, offload_.version, n_both, both, n_both > kNamed ? ", ..." : "");
  }
  return absl::OkStatus();
}

void Model::PublisherLoop() {
  constexpr auto kNever = Clock::time_point::max();
  std::unique_lock lock(mu_);
  auto scrub_at = options_.scrub_bytes_per_s == 0 ? kNever : Clock::now();
  while (!stopping_) {
    const auto now = Clock::now();
    const auto deadline = phase_ == OffloadPhase::kWriting ? offload_.deadline : kNever;
    if (phase_ == OffloadPhase::kPublishing && offload_.lease != 0) {
      PublishOffload(lock);
    } else if (now >= deadline) {
      AbandonOffload(
          Errorf(StatusCode::kAborted,
                 "model \"{}\": the offload of version {} was abandoned after {} ms "
                 "(offload-timeout-ms): {}; see what these ranks wait for, or raise the option",
                 name_, offload_.version, options_.offload_timeout.count(), LateRanks()));
    } else if (now >= scrub_at) {
      const auto pause = ScrubSome(lock);
      scrub_at = Clock::now() + std::chrono::duration_cast<Clock::duration>(pause);
    } else if (const auto until = std::min(scrub_at, deadline); until == kNever) {
      cv_.wait(lock);
    } else {
      cv_.wait_until(lock, until);
    }
  }
}

void Model::PublishOffload(std::unique_lock<std::mutex>& lock) {
  const uint64_t epoch = published_ == nullptr ? 1 : published_->info.id.epoch;
  std::vector<bool> unchanged(layout_.size());
  for (size_t t = 0; t < unchanged.size(); ++t) unchanged[t] = offload_.marks[t] == kUnchanged;
  Publish(lock, {epoch, offload_.version}, false, SecondsSince(offload_.granted), UnixNanos(),
          unchanged);
}

void Model::Publish(std::unique_lock<std::mutex>& lock, StateId to, bool rollback,
                    double offload_seconds, int64_t ready_nanos,
                    const std::vector<bool>& unchanged) {
  const auto start = Clock::now();
  const uint32_t half = InactiveHalf();
  const StateId from = published_ == nullptr ? StateId{} : published_->info.id;
  const auto job = offload_.job;
  lock.unlock();
  PublishJob::Result result = job->Finish(from, to, unchanged, pool_);
  for (uint32_t c = 0; c < chunks_.size(); ++c) {
    state_.SetChunk(half, c, to.version, (*result.digests)[c]);
  }
  state_.FinishWrite(half, to);
  state_.set_active(half);
  lock.lock();

  VersionInfo info;
  info.model_bytes = owned_bytes_;
  info.elements = elements_;
  info.changed_elements = result.changed_elements;
  info.full_bytes = result.full_bytes;
  info.trainer_wait_seconds = offload_.waited;
  info.offload_seconds = offload_seconds;
  info.publish_seconds = SecondsSince(start);
  info.ready_unix_nanos = ready_nanos;
  info.published_unix_nanos = UnixNanos();
  info.rollback = rollback;
  if (result.delta != nullptr) {
    info.delta_bytes = result.delta->payload_bytes();
    log_.Append(std::move(result.delta));
  }
  ++totals_.published;
  totals_.delta_bytes += info.delta_bytes;
  totals_.trainer_wait_seconds += info.trainer_wait_seconds;
  totals_.publish_seconds += info.publish_seconds;
  Install(to, half, info, std::move(result.digests), std::move(result.tensors), result.damaged);
  offload_ = {};
  phase_ = OffloadPhase::kIdle;
  cv_.notify_all();
  spdlog::info("model {}: {} published: {:.2f}% changed, delta {}, in {}", name_, ToString(to),
               elements_ == 0 ? 0.0 : 100.0 * info.changed_elements / elements_,
               HumanBytes(info.delta_bytes), HumanSeconds(info.publish_seconds));
  lock.unlock();
  if (changed_) changed_();
  lock.lock();
}

StatusOr<VersionInfo> Model::WaitPublished(uint64_t version, uint64_t lease,
                                           const std::function<bool()>& gone) {
  std::unique_lock lock(mu_);
  while (true) {
    if (published_ != nullptr && published_->info.id.version >= version) return published_->info;
    for (const Failure& f : failures_) {
      const bool again = offload_.version == version && offload_.lease != f.lease;
      if (lease == 0 ? f.version == version && !again : f.lease == lease) return f.why;
    }
    if (stopping_) return absl::UnavailableError("the sender is stopping");
    if (gone()) return absl::CancelledError("the caller has gone");
    cv_.wait_for(lock, std::chrono::milliseconds(100));
  }
}

Status Model::CheckUndamaged(uint64_t version) const {
  for (uint32_t c = 0; c < chunks_.size(); ++c) {
    if (published_->damaged[c] == 0) continue;
    return Errorf(StatusCode::kDataLoss,
                  "model \"{}\": tensor {} no longer has its digest in memory, so nothing can be "
                  "made from it; offload version {} again as a new one",
                  name_, layout_.tensor(chunks_[c].tensor).name, version);
  }
  return absl::OkStatus();
}

StatusOr<VersionInfo> Model::Rollback(uint64_t version) {
  std::unique_lock lock(mu_);
  if (phase_ != OffloadPhase::kIdle) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "model \"{}\": an offload of version {} is under way; roll back when it is done",
                  name_, offload_.version);
  }
  if (published_ == nullptr || published_->info.id.version == version) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "model \"{}\": {} is published; there is nothing "
                  "to roll back",
                  name_, ToString(published_ ? published_->info.id : StateId{}));
  }
  const LogView log = published_->log;
  size_t first = log.size();
  uint64_t oldest = published_->info.id.version;
  for (size_t i = log.size(); i-- > 0 && first == log.size();) {
    // A chunk that went whole cannot be undone, so nothing before it can be reached.
    const auto& chunks = log[i]->chunks();
    if (std::any_of(chunks.begin(), chunks.end(), [](const ChunkDelta& d) { return d.full; }))
      break;
    oldest = log[i]->from().version;
    if (oldest == version) first = i;
  }
  if (first == log.size()) {
    return Errorf(StatusCode::kNotFound,
                  "model \"{}\": version {} cannot be made from the delta log, which reaches back "
                  "to version {}; offload it again as a new version",
                  name_, version, oldest);
  }
  DW_RETURN_IF_ERROR(CheckUndamaged(version));
  const auto start = Clock::now();
  phase_ = OffloadPhase::kPublishing;  // with no lease: the publisher thread leaves it alone
  offload_ = {};
  offload_.version = version;
  const Status drained = DrainInactive(lock, &offload_.waited);
  Status undone = drained;
  if (drained.ok()) {
    const uint32_t half = InactiveHalf();
    const Bytes from = std::as_const(halves_[published_->half]).data();
    state_.BeginWrite(half);
    std::vector<uint64_t> digests = *published_->digests;
    lock.unlock();
    for (const ByteRange& r : owned_.ByteRanges(chunks_)) {
      std::memcpy(halves_[half].data().data() + r.first, from.data() + r.first, r.last - r.first);
    }
    undone = UndoInto(halves_[half].data(), log, first, digests);
    lock.lock();
    // Again: a scrub may have found it meanwhile, and the copy has what it found.
    if (undone.ok()) undone = CheckUndamaged(version);
  }
  if (!undone.ok()) {
    phase_ = OffloadPhase::kIdle;
    offload_ = {};
    cv_.notify_all();
    return undone;
  }
  StartJob();
  Publish(lock, {published_->info.id.epoch + 1, version}, true, SecondsSince(start), UnixNanos(),
          std::vector<bool>(layout_.size()));
  return published_->info;
}

Status Model::UndoInto(MutableBytes data, const LogView& log, size_t first,
                       std::vector<uint64_t>& digests) const {
  std::vector<std::byte> negated(kernels::MaxEncodedBytes(kChunkBytes, 1) + 4096);
  std::vector<std::byte> scratch(kernels::FoldScratchBytes(8));
  for (size_t i = log.size(); i-- > first;) {
    for (const ChunkDelta& d : log[i]->chunks()) {
      const Chunk& chunk = chunks_[d.chunk];
      negated.resize(std::max(negated.size(), kernels::MaxEncodedBytes(chunk.bytes, chunk.width)));
      size_t bytes = 0;
      auto decoded = backend_.negate(d.payload, chunk.bytes, chunk.width, scratch, negated, &bytes);
      uint64_t& digest = digests[d.chunk];
      if (decoded == kernels::DecodeStatus::kOk) {
        decoded = backend_.decode_apply(key_, Bytes(negated).first(bytes),
                                        data.subspan(chunk.offset, chunk.bytes), chunk.width,
                                        digest, &digest);
      }
      if (decoded != kernels::DecodeStatus::kOk || digest != d.digest_before) {
        return Errorf(
            StatusCode::kDataLoss,
            "model \"{}\": undoing {} disagrees with its digest in tensor {}; nothing was "
            "published, offload the version again",
            name_, ToString(log[i]->to()), layout_.tensor(chunk.tensor).name);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace deltawire::sender
