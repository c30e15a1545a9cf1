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

using Clock = SteadyClock;
uint64_t Replica::AskVerify(bool repair) {
  uint64_t request = 0;
  {
    MutexLock lock(mu_);
    request = verifies_.Add(repair);
    cv_.notify_all();
  }
  // A pull of what the trainer still writes may take long, and is not gone on with meanwhile.
  EndEarlyPull();
  return request;
}

StatusOr<std::optional<VerifyResult>> Replica::VerifyAnswer(uint64_t request) {
  MutexLock lock(mu_);
  if (const uint64_t sync = verifies_.sync(request); sync != 0) {
    if (const auto synced = requests_.AnswerTo(sync)) {
      verifies_.Repaired(request, *synced, commits_.last().value_or(Commit{}).id);
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
  MutexLock lock(mu_);
  requests_.Forget(verifies_.Forget(request));
  cv_.notify_all();
}

Status Replica::MayVerify() const {
  if (buffer_ != nullptr && !buffer_->committed().empty()) return absl::OkStatus();
  return Errorf(StatusCode::kFailedPrecondition,
                "model \"{}\": no whole version is committed; sync first", options_.model);
}

bool Replica::VerifySome() {
  if (pass_ && !verifies_.passes()) pass_.reset();  // its callers have gone
  if (!pass_) {
    if (!verifies_.Begin()) return false;
    pass_.emplace(buffers_made_);
  }
  if (const Status may = MayVerify(); !may.ok()) {
    EndVerify(may);
    return true;
  }
  const uint64_t made = buffers_made_;
  mu_.unlock();
  const bool more = pass_->Slice(*buffer_, made, pool_);
  mu_.lock();
  if (!more) EndVerify(pass_->Result(*buffer_));
  return true;
}

void Replica::EndVerify(const StatusOr<VerifyResult>& found) {
  const std::set<uint32_t> corrupt = pass_->corrupt();
  pass_.reset();
  if (found.ok() && !corrupt.empty()) {
    LogError("model {}: verify: {} chunks disagree with their digest", options_.model,
             corrupt.size());
  }
  const std::vector<uint64_t> repairs = verifies_.End(found);
  if (!repairs.empty()) suspects_.insert(corrupt.begin(), corrupt.end());
  for (const uint64_t call : repairs) {
    if (follower_.attached()) {
      verifies_.Repairs(call, requests_.Add(false));
    } else {
      verifies_.RepairFailed(call, line_.WhyNoSender());
    }
  }
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
  MutexLock lock(mu_);
  if (fingerprint != status_.fingerprint || !suspects_.insert(chunk).second) return;
  ++status_.scrub_mismatches;
  cv_.notify_all();
}

Status Replica::MarkSuspects() {
  std::set<uint32_t> suspects;
  {
    MutexLock lock(mu_);
    if (suspects_.empty()) return absl::OkStatus();
  }
  DW_RETURN_IF_ERROR(gate_.BeginChange());
  {
    MutexLock lock(mu_);
    suspects.swap(suspects_);
    gate_.LoseName();
    status_.repaired_chunks += suspects.size();
  }
  const Status begun = buffer_->Distrust(std::vector<uint32_t>(suspects.begin(), suspects.end()));
  if (!begun.ok()) {
    MutexLock lock(mu_);
    suspects_.merge(suspects);
    return begun;
  }
  serving_.Distrust(std::vector<uint32_t>(suspects.begin(), suspects.end()));
  return absl::OkStatus();
}

Upkeep::Situation Replica::UpkeepSituation() const {
  return {.committed = !gate_.committed().empty(),
          .paused = paused_,
          .prepared = prepared_.has_value(),
          .corrupt = !suspects_.empty(),
          .verifying = verifies_.waiting()};
}

bool Replica::DoUpkeep(Clock::time_point now, Clock::time_point* again) {
  if (buffer_ == nullptr) return false;
  const Upkeep::Choice next = upkeep_.Next(*buffer_, UpkeepSituation(), now);
  *again = std::min(*again, next.again);
  if (next.task == Upkeep::Task::kNothing) return false;
  RunUpkeep(next.task);
  return true;
}

void Replica::RunUpkeep(Upkeep::Task task) {
  using_buffer_ = task != Upkeep::Task::kScrub;
  mu_.unlock();
  const bool spare = task == Upkeep::Task::kMakeSpare;
  const Upkeep::Outcome done =
      upkeep_.Run(task, *buffer_, sink_.get(), [this, spare] { return IsWanted(spare); });
  if (task == Upkeep::Task::kCheck) {
    const StatusOr<Buffer::Health>& health = done.health;
    // What was put back may be another file.
    if (health.ok() && (serving_.serve_again() || !health->put_back.empty())) {
      serving_.Serve(*buffer_);
    }
    if (health.ok()) serving_.Distrust(health->bad_chunks);
    serving_.Distrust(buffer_->TakeLost());
  }
  mu_.lock();
  using_buffer_ = false;
  cv_.notify_all();
  status_.scrubbed_bytes += done.scrubbed_bytes;
  Doubt(done.corrupt);
  if (task == Upkeep::Task::kCheck) NoteCheck(done.health);
}

void Replica::NoteCheck(const StatusOr<Buffer::Health>& health) {
  gate_.Look(*buffer_);
  if (!health.ok()) {
    return line_.Fail(health.status(), ReplicaLine::Cause::kCheck);
  }
  line_.Recover(ReplicaLine::Cause::kCheck);
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
  MutexLock lock(mu_);
  if (stopping_ || paused_ || requests_.waiting() || describe_) return true;
  if (verifies_.waiting()) return true;
  const Follower::Choice next = NextPlan(Clock::now()).choice;
  return next.pull && (incoming || !next.target.unwritten());
}

}  // namespace deltawire::receiver
