// A Replica's checks: memory against digests, on request (Verify) and little by little when idle
// (scrubbing); files that somebody changed; and the catch-up of the hidden file.
#include <algorithm>
#include <chrono>
#include <set>

#include "common/base/call_end.h"
#include "common/base/human.h"
#include "common/base/log.h"
#include "common/base/sync.h"
#include "receiver/replica.h"

namespace deltawire::receiver {
namespace {

using Clock = SteadyClock;

// Small chunks are scrubbed together, since each pause costs a wake-up.
constexpr uint64_t kBatchBytes = 256 << 10;
constexpr std::chrono::milliseconds kNothingToDo{500};
// Size of a slice of Verify; a pull waits for one slice at most.
constexpr uint64_t kSliceBytes = 64 << 20;
constexpr std::chrono::milliseconds kSlice{100};
constexpr size_t kMaxBadTensors = 100;
// Pause before the next attempt to update the hidden file, which a reader may have open.
constexpr std::chrono::milliseconds kCatchUpPause{200};

}  // namespace

void Replica::VerifySlice(uint32_t first, uint32_t last, std::set<uint32_t>* bad) {
  Mutex mu;
  pool_.ParallelFor(last - first, [&](size_t i) {
    const auto c = first + static_cast<uint32_t>(i);
    if (buffer_->Intact(c)) return;
    std::lock_guard guard(mu);
    bad->insert(c);
  });
}

StatusOr<VerifyResult> Replica::Verify(bool repair, const std::function<bool()>& gone) {
  // A pull of what the trainer still writes may take long, and is not gone on with meanwhile.
  {
    std::lock_guard lock(mu_);
    ++verifies_;
  }
  EndEarlyPull();
  auto result = VerifyAll(repair, gone);
  std::lock_guard lock(mu_);
  --verifies_;
  cv_.notify_all();
  return result;
}

StatusOr<VerifyResult> Replica::VerifyAll(bool repair, const std::function<bool()>& gone) {
  VerifyResult result;
  std::set<uint32_t> bad;
  const auto start = Clock::now();
  std::unique_lock lock(mu_);
  uint64_t made = buffers_made_;
  for (uint32_t first = 0;;) {
    // A pull goes first. Chunks that it commits are verified in place of the older ones.
    while (pulling_ && !stopping_) {
      cv_.wait_for(lock, kSlice);
      lock.unlock();
      const bool left = gone();
      lock.lock();
      if (left) return CallerGone();
    }
    if (stopping_) return Stopping("receiver");
    if (buffer_ == nullptr || buffer_->committed().empty()) {
      return Errorf(StatusCode::kFailedPrecondition,
                    "model \"{}\": no whole version is committed; sync first", options_.model);
    }
    if (std::exchange(made, buffers_made_) != buffers_made_) {
      // A model of another layout has replaced this one, so verification starts over.
      first = 0;
      bad.clear();
    }
    const ChunkTable& chunks = buffer_->chunks();
    result.committed = buffer_->committed();
    result.chunks = chunks.size();
    result.bytes = buffer_->layout().total_bytes();
    uint32_t last = first;
    for (uint64_t bytes = 0; last < chunks.size() && bytes < kSliceBytes; ++last) {
      bytes += chunks[last].bytes;
    }
    if (first >= last) break;
    ++verifying_;
    lock.unlock();
    VerifySlice(first, last, &bad);
    const bool left = gone();
    lock.lock();
    --verifying_;
    cv_.notify_all();
    if (left) return CallerGone();
    first = last;
  }
  result.seconds = SecondsSince(start);
  result.bad_chunks = bad.size();
  std::set<uint32_t> tensors;
  for (const uint32_t c : bad) tensors.insert(buffer_->chunks()[c].tensor);
  for (const uint32_t t : tensors) {
    if (result.bad_tensors.size() == kMaxBadTensors) break;
    result.bad_tensors.push_back(buffer_->layout().tensor(t).name);
  }
  if (bad.empty()) return result;
  LogError("model {}: verify: {} chunks disagree with their digest", options_.model, bad.size());
  if (!repair) return result;
  suspects_.insert(bad.begin(), bad.end());
  lock.unlock();
  DW_ASSIGN_OR_RETURN(const Commit synced, Sync(
                                               false, [](const ReplicaStatus&) {}, gone));
  result.committed = synced.id;
  result.repaired = true;
  return result;
}

std::chrono::nanoseconds Replica::ScrubSome() {
  const ChunkTable& chunks = buffer_->chunks();
  if (buffer_->committed().empty() || chunks.size() == 0) return kNothingToDo;
  uint64_t bytes = 0;
  std::vector<uint32_t> bad;
  for (uint32_t n = 0; n < chunks.size() && bytes < kBatchBytes; ++n) {
    const uint32_t c = scrub_next_++ % chunks.size();
    bytes += chunks[c].bytes;
    if (!buffer_->Intact(c)) bad.push_back(c);
  }
  scrub_next_ %= chunks.size();
  std::lock_guard lock(mu_);
  status_.scrubbed_bytes += bytes;
  Doubt(bad);
  return TimeAtRate(bytes, options_.scrub_bytes_per_s);
}

void Replica::Doubt(const std::vector<uint32_t>& chunks) {
  for (const uint32_t c : chunks) {
    if (!suspects_.insert(c).second) continue;
    ++status_.scrub_mismatches;
    LogError(
        "model {}: {}: chunk {} of tensor {} has lost its digest: {} (check this machine's memory) "
        "{}",
        options_.model, ToString(status_.committed), c,
        buffer_->layout().tensor(buffer_->chunks()[c].tensor).name,
        options_.follow && !paused_ ? "fetching it whole" : "the next sync fetches it whole",
        ToString(TraceOf(status_.committed)));
  }
}

void Replica::Suspect(const std::string& fingerprint, uint32_t chunk) {
  std::lock_guard lock(mu_);
  if (fingerprint != status_.fingerprint || !suspects_.insert(chunk).second) return;
  ++status_.scrub_mismatches;
  cv_.notify_all();
}

Status Replica::MarkSuspects() {
  std::set<uint32_t> suspects;
  {
    std::lock_guard lock(mu_);
    if (suspects_.empty()) return absl::OkStatus();
  }
  DW_RETURN_IF_ERROR(BeginChange());
  {
    std::lock_guard lock(mu_);
    changing_ = false;
    suspects.swap(suspects_);
    status_.committed = {};
    half_updated_ = true;
    status_.repaired_chunks += suspects.size();
  }
  const Status begun = buffer_->Distrust(std::vector<uint32_t>(suspects.begin(), suspects.end()));
  if (!begun.ok()) {
    std::lock_guard lock(mu_);
    suspects_.merge(suspects);
    return begun;
  }
  TellLost(std::vector<uint32_t>(suspects.begin(), suspects.end()));
  return absl::OkStatus();
}

void Replica::CheckFiles(std::unique_lock<Mutex>& lock) {
  pulling_ = true;
  lock.unlock();
  const auto health = buffer_->Check();
  // What was put back may be another file.
  if (health.ok() && (serve_again_ || !health->put_back.empty())) ServeOn(nullptr, {});
  if (health.ok()) TellLost(health->bad_chunks);
  TellLost(buffer_->TakeLost());
  lock.lock();
  pulling_ = false;
  cv_.notify_all();
  status_.committed = buffer_->committed();
  if (!health.ok()) {
    SetMessage(health.status());
    check_failed_ = true;
    return;
  }
  if (std::exchange(check_failed_, false)) Recovered();
  for (const std::string& name : health->put_back) {
    ++status_.files_put_back;
    LogWarn("model {}: {} was removed or changed by somebody: put back", options_.model, name);
  }
  if (health->bad_chunks.empty()) return;
  status_.scrub_mismatches += health->bad_chunks.size();
  LogError("model {}: {} chunks of {} were changed by somebody: fetching them whole",
           options_.model, health->bad_chunks.size(), options_.directory.native());
}

void Replica::CatchUp(std::unique_lock<Mutex>& lock) {
  catching_up_ = true;
  lock.unlock();
  const std::vector<Buffer::AppliedDelta> deltas = sink_->Applied();
  const auto stop = [this] {
    std::lock_guard guard(mu_);
    if (stopping_ || paused_ || requests_.waiting() || describe_) return true;
    const Follower::Choice next = NextPlan(Clock::now()).choice;
    return next.pull && !next.target.unwritten();
  };
  const auto caught = buffer_->CatchUp(deltas, stop);
  lock.lock();
  catching_up_ = false;
  cv_.notify_all();
  catch_up_at_ = Clock::now() + kCatchUpPause;
  if (!caught.ok()) {
    LogWarn("model {}: {}", options_.model, MessageOf(caught.status()));
    return;
  }
  Doubt(caught->lost_chunks);
  if (!caught->whole) return;
  behind_ = false;
  sink_->ForgetApplied();
}

}  // namespace deltawire::receiver
