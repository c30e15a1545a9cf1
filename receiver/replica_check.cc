// A Replica's checks: memory against digests, on request (AskVerify) and little by little when idle
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

// Chunks are scrubbed together, since each pause costs a wake-up. A batch takes about a
// millisecond, for which a pull may have to wait.
constexpr uint64_t kBatchBytes = 8 << 20;
constexpr std::chrono::milliseconds kNothingToDo{500};
// Size of a slice of Verify; a pull waits for one slice at most.
constexpr uint64_t kSliceBytes = 64 << 20;
constexpr size_t kMaxBadTensors = 100;
// Pause before the next attempt to update the hidden file, which a reader may have open.
constexpr std::chrono::milliseconds kCatchUpPause{200};
// The same after an error, such as no room for a fresh file, which may last.
constexpr std::chrono::milliseconds kCatchUpFailedPause{2000};

}  // namespace

uint64_t Replica::AskVerify(bool repair) {
  uint64_t request = 0;
  {
    std::lock_guard lock(mu_);
    request = verifies_.Add(repair);
    cv_.notify_all();
  }
  // A pull of what the trainer still writes may take long, and is not gone on with meanwhile.
  EndEarlyPull();
  return request;
}

StatusOr<std::optional<VerifyResult>> Replica::VerifyAnswer(uint64_t request) {
  std::lock_guard lock(mu_);
  if (const uint64_t sync = verifies_.sync(request); sync != 0) {
    if (const auto synced = requests_.AnswerTo(sync)) {
      verifies_.Repaired(request, *synced, last_commit_ ? last_commit_->id : Identity{});
      cv_.notify_all();
    }
  }
  if (auto answer = verifies_.AnswerTo(request)) {
    if (!answer->ok()) return answer->status();
    return std::optional<VerifyResult>(**std::move(answer));
  }
  if (stopping_) return Stopping("receiver");
  return std::optional<VerifyResult>();
}

void Replica::ForgetVerify(uint64_t request) {
  std::lock_guard lock(mu_);
  requests_.Forget(verifies_.Forget(request));
  cv_.notify_all();
}

Status Replica::MayVerify() const {
  if (buffer_ != nullptr && !buffer_->committed().empty()) return absl::OkStatus();
  return Errorf(StatusCode::kFailedPrecondition,
                "model \"{}\": no whole version is committed; sync first", options_.model);
}

bool Replica::VerifySome(std::unique_lock<Mutex>& lock) {
  if (pass_ && !verifies_.passes()) pass_.reset();  // its callers have gone
  if (!pass_) {
    if (!verifies_.Begin()) return false;
    pass_ = VerifyPass{.began = Clock::now(), .made = buffers_made_, .next = 0, .bad = {}};
  }
  StatusOr<VerifyResult> found = VerifyResult();
  if (const Status may = MayVerify(); !may.ok()) {
    found = may;
  } else {
    // A model of another layout has replaced this one, so the check starts over.
    if (pass_->made != buffers_made_) {
      *pass_ = {.began = pass_->began, .made = buffers_made_, .next = 0, .bad = {}};
    }
    const ChunkTable& chunks = buffer_->chunks();
    const uint32_t first = pass_->next;
    for (uint64_t bytes = 0; pass_->next < chunks.size() && bytes < kSliceBytes; ++pass_->next) {
      bytes += chunks[pass_->next].bytes;
    }
    lock.unlock();
    Mutex mu;
    pool_.ParallelFor(pass_->next - first, [&](size_t i) {
      const auto c = first + static_cast<uint32_t>(i);
      if (buffer_->Intact(c)) return;
      std::lock_guard guard(mu);
      pass_->bad.insert(c);
    });
    lock.lock();
    if (pass_->next < chunks.size()) return true;
    found = EndVerify();
  }
  const std::set<uint32_t> bad = std::move(pass_->bad);
  pass_.reset();
  const std::vector<uint64_t> repairs = verifies_.End(found);
  if (!repairs.empty()) suspects_.insert(bad.begin(), bad.end());
  for (const uint64_t call : repairs) {
    if (follower_.attached()) {
      verifies_.Repairs(call, requests_.Add(false));
    } else {
      verifies_.RepairFailed(call, WhyNoSender());
    }
  }
  return true;
}

StatusOr<VerifyResult> Replica::EndVerify() {
  VerifyResult result;
  result.committed = buffer_->committed();
  result.chunks = buffer_->chunks().size();
  result.bytes = buffer_->layout().total_bytes();
  result.seconds = SecondsSince(pass_->began);
  result.bad_chunks = pass_->bad.size();
  std::set<uint32_t> tensors;
  for (const uint32_t c : pass_->bad) tensors.insert(buffer_->chunks()[c].tensor);
  for (const uint32_t t : tensors) {
    if (result.bad_tensors.size() == kMaxBadTensors) break;
    result.bad_tensors.push_back(buffer_->layout().tensor(t).name);
  }
  if (pass_->bad.empty()) return result;
  LogError("model {}: verify: {} chunks disagree with their digest", options_.model,
           result.bad_chunks);
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
        options_.model, ToString(gate_.committed()), c,
        buffer_->layout().tensor(buffer_->chunks()[c].tensor).name,
        options_.follow && !paused_ ? "fetching it whole" : "the next sync fetches it whole",
        ToString(TraceOf(gate_.committed())));
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
  DW_RETURN_IF_ERROR(gate_.BeginChange());
  {
    std::lock_guard lock(mu_);
    suspects.swap(suspects_);
    gate_.LoseName();
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
  gate_.Look(*buffer_);
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

bool Replica::IsWanted(bool incoming) const {
  std::lock_guard guard(mu_);
  if (stopping_ || paused_ || requests_.waiting() || describe_) return true;
  if (verifies_.waiting()) return true;
  const Follower::Choice next = NextPlan(Clock::now()).choice;
  return next.pull && (incoming || !next.target.unwritten());
}

bool Replica::MakeSpare(std::unique_lock<Mutex>& lock, Clock::time_point* again) {
  if (paused_ || !buffer_->lacks_spare()) return false;
  if (Clock::now() < catch_up_at_) {
    *again = std::min(*again, catch_up_at_);
    return false;
  }
  catching_up_ = true;
  lock.unlock();
  const Status made = buffer_->MakeSpare([this] { return IsWanted(true); });
  lock.lock();
  catching_up_ = false;
  cv_.notify_all();
  if (made.ok()) return true;
  catch_up_at_ = Clock::now() + (absl::IsCancelled(made) ? kCatchUpPause : kCatchUpFailedPause);
  LogDebug("model {}: {}", options_.model, MessageOf(made));
  return true;
}

void Replica::CatchUp(std::unique_lock<Mutex>& lock) {
  catching_up_ = true;
  lock.unlock();
  const std::vector<Buffer::AppliedDelta> deltas = sink_->Applied();
  const auto caught = buffer_->CatchUp(deltas, [this] { return IsWanted(false); });
  lock.lock();
  catching_up_ = false;
  cv_.notify_all();
  catch_up_at_ = Clock::now() + (caught.ok() ? kCatchUpPause : kCatchUpFailedPause);
  const StatusCode code = caught.status().code();
  const bool said = std::exchange(catch_up_failed_, code) == code;
  if (!caught.ok()) {
    LogLine(said ? LogLevel::kDebug : LogLevel::kWarn, "model {}: {}", options_.model,
            MessageOf(caught.status()));
    return;
  }
  Doubt(caught->lost_chunks);
  if (!caught->whole) return;
  behind_ = false;
  sink_->ForgetApplied();
}

}  // namespace deltawire::receiver
