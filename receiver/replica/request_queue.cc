#include "receiver/replica/request_queue.h"

#include <algorithm>

#include "common/base/call_end.h"

namespace deltawire::receiver {

bool RequestQueue::Waits(const Local& local, bool check) {
  return check == (local.wants == Local::Wants::kCheck) && !local.taken && !local.answer;
}

uint64_t RequestQueue::AddSync(bool force_full) {
  MutexLock lock(mu_);
  local_[++last_] = {.force_full = force_full, .found = {}, .answer = {}};
  return last_;
}

uint64_t RequestQueue::AddCheck(bool repair) {
  MutexLock lock(mu_);
  local_[++last_] = {.wants = Local::Wants::kCheck, .repairs = repair, .found = {}, .answer = {}};
  return last_;
}

void RequestQueue::Forget(uint64_t number) {
  MutexLock lock(mu_);
  local_.erase(number);
}

StatusOr<std::optional<RequestQueue::Local>> RequestQueue::TakeAnswered(uint64_t number) {
  MutexLock lock(mu_);
  const auto it = local_.find(number);
  if (it == local_.end() || !it->second.answer) {
    if (stopping_) return Stopping("receiver");
    return std::optional<Local>();
  }
  std::optional<Local> local = std::move(it->second);
  local_.erase(it);
  DW_RETURN_IF_ERROR(*local->answer);
  return local;
}

StatusOr<std::optional<Commit>> RequestQueue::SyncAnswer(uint64_t number) {
  DW_ASSIGN_OR_RETURN(const auto local, TakeAnswered(number));
  return local ? commits_.last() : std::nullopt;
}

StatusOr<std::optional<VerifyResult>> RequestQueue::CheckAnswer(uint64_t number) {
  DW_ASSIGN_OR_RETURN(auto local, TakeAnswered(number));
  if (!local) return std::optional<VerifyResult>();
  return std::optional<VerifyResult>(std::move(local->found));
}

void RequestQueue::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  Notify();
}

void RequestQueue::AddRemote(const Remote& request) {
  MutexLock lock(mu_);
  if (remote_.size() + serving_.size() >= kMostRemote) return;
  const auto has = [&](const std::vector<Remote>& all) {
    return std::ranges::find(all, request) != all.end();
  };
  if (!has(remote_) && !has(serving_)) remote_.push_back(request);
}

void RequestQueue::DropRemote(size_t agent) {
  MutexLock lock(mu_);
  const auto of_agent = [agent](const Remote& r) { return r.agent == agent; };
  std::erase_if(remote_, of_agent);
  std::erase_if(serving_, of_agent);
}

bool RequestQueue::wants_pull() const {
  MutexLock lock(mu_);
  return !remote_.empty() ||
         std::ranges::any_of(local_, [](const auto& e) { return Waits(e.second, false); });
}

RequestQueue::Batch RequestQueue::Take() {
  MutexLock lock(mu_);
  Batch batch;
  for (auto& [number, local] : local_) {
    if (!Waits(local, false)) continue;
    local.taken = true;
    batch.local.push_back(number);
    batch.force_full |= local.force_full;
  }
  for (const Remote& r : remote_) batch.force_full |= r.force_full;
  serving_.insert(serving_.end(), remote_.begin(), remote_.end());
  batch.remote = std::exchange(remote_, {});
  return batch;
}

std::vector<RequestQueue::Remote> RequestQueue::Answer(const Batch& batch, const Status& status) {
  const auto last = commits_.last();
  MutexLock lock(mu_);
  for (const uint64_t number : batch.local) {
    const auto it = local_.find(number);
    if (it == local_.end()) continue;
    it->second.answer = status;
    it->second.found.committed = last ? last->id : Identity{};
    it->second.found.repaired = status.ok();
  }
  std::vector<Remote> answer;
  for (const Remote& r : batch.remote) {
    const auto it = std::ranges::find(serving_, r);
    if (it == serving_.end()) continue;
    serving_.erase(it);
    answer.push_back(r);
  }
  return answer;
}

bool RequestQueue::wants_check() const {
  MutexLock lock(mu_);
  return AnyChecking() ||
         std::ranges::any_of(local_, [](const auto& e) { return Waits(e.second, true); });
}

bool RequestQueue::BeginCheck() {
  MutexLock lock(mu_);
  for (auto& [number, local] : local_) local.taken = local.taken || Waits(local, true);
  return AnyChecking();
}

bool RequestQueue::checking() const {
  MutexLock lock(mu_);
  return AnyChecking();
}

bool RequestQueue::AnyChecking() const {
  return std::ranges::any_of(local_, [](const auto& e) {
    return e.second.wants == Local::Wants::kCheck && e.second.taken && !e.second.answer;
  });
}

bool RequestQueue::EndCheck(const StatusOr<VerifyResult>& found) {
  MutexLock lock(mu_);
  bool repairs = false;
  for (auto& [number, local] : local_) {
    if (local.wants != Local::Wants::kCheck || !local.taken || local.answer) continue;
    if (found.ok()) local.found = *found;
    if (found.ok() && local.repairs && found->bad_chunks > 0) {
      local.wants = Local::Wants::kRepair;
      local.taken = false;
      repairs = true;
    } else {
      local.answer = found.status();
    }
  }
  return repairs;
}

}  // namespace deltawire::receiver
