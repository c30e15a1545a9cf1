#include "receiver/request_queue.h"

#include <algorithm>
#include <utility>

namespace deltawire::receiver {
namespace {

bool Contains(const std::vector<RequestQueue::Remote>& all, const RequestQueue::Remote& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

}  // namespace

uint64_t RequestQueue::Add(bool force_full) {
  local_[++last_].force_full = force_full;
  return last_;
}

void RequestQueue::AddRemote(const Remote& request) {
  if (remote_.size() + serving_.size() >= kMostRemote) return;
  if (Contains(remote_, request) || Contains(serving_, request)) return;
  remote_.push_back(request);
}

void RequestQueue::DropRemote(size_t agent) {
  const auto of_agent = [agent](const Remote& r) { return r.agent == agent; };
  std::erase_if(remote_, of_agent);
  std::erase_if(serving_, of_agent);
}

bool RequestQueue::waiting() const {
  return !remote_.empty() || std::any_of(local_.begin(), local_.end(), [](const auto& entry) {
    return !entry.second.taken && !entry.second.answer;
  });
}

RequestQueue::Batch RequestQueue::Take() {
  Batch batch;
  for (auto& [number, local] : local_) {
    if (local.answer || std::exchange(local.taken, true)) continue;
    batch.local.push_back(number);
    batch.force_full |= local.force_full;
  }
  for (const Remote& r : remote_) batch.force_full |= r.force_full;
  serving_.insert(serving_.end(), remote_.begin(), remote_.end());
  batch.remote = std::exchange(remote_, {});
  return batch;
}

std::vector<RequestQueue::Remote> RequestQueue::Answer(const Batch& batch, const Status& status) {
  for (const uint64_t number : batch.local) {
    const auto it = local_.find(number);
    if (it != local_.end()) it->second.answer = status;
  }
  std::vector<Remote> answer;
  for (const Remote& r : batch.remote) {
    const auto it = std::find(serving_.begin(), serving_.end(), r);
    if (it == serving_.end()) continue;
    serving_.erase(it);
    answer.push_back(r);
  }
  return answer;
}

std::optional<Status> RequestQueue::AnswerTo(uint64_t number) {
  const auto it = local_.find(number);
  if (it == local_.end() || !it->second.answer) return std::nullopt;
  Status answer = std::move(*it->second.answer);
  local_.erase(it);
  return answer;
}

}  // namespace deltawire::receiver
