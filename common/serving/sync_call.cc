#include "common/serving/sync_call.h"

#include <algorithm>
#include <utility>

namespace deltawire {
namespace {

bool SameToCaller(const SyncCall::Progress& a, const SyncCall::Progress& b) {
  return a.phase == b.phase && a.report.bytes_done == b.report.bytes_done &&
         a.report.bytes_total == b.report.bytes_total && a.report.message == b.report.message;
}

void Append(const std::vector<std::weak_ptr<SyncCall>>& from,
            std::vector<std::shared_ptr<SyncCall>>* to) {
  for (const auto& one : from) {
    if (auto call = one.lock()) to->push_back(std::move(call));
  }
}

}  // namespace

SyncCall::SyncCall(const Identity& target, std::function<void()> news)
    : target_(target), news_(std::make_shared<const std::function<void()>>(std::move(news))) {}

void SyncCall::Add(uint64_t token, const std::string& id) {
  MutexLock lock(mu_);
  open_[token].id = id;
}

bool SyncCall::Report(uint64_t token, const ReceiverReport& report) {
  MutexLock lock(mu_);
  const auto it = open_.find(token);
  if (it == open_.end()) return false;
  const bool busy =
      report.phase == ReceiverPhase::kPulling || report.phase == ReceiverPhase::kApplying;
  Progress now{.receiver_id = it->second.id,
               .phase = busy ? report.phase : ReceiverPhase::kAsked,
               .target = target_,
               .report = report};
  if (it->second.last && SameToCaller(*it->second.last, now)) return false;
  it->second.last = now;
  Queue(token, std::move(now));
  return true;
}

void SyncCall::Answer(uint64_t token, const ReceiverReport& report) {
  MutexLock lock(mu_);
  const auto it = open_.find(token);
  if (it == open_.end()) return;
  Queue(token,
        {.receiver_id = it->second.id, .phase = report.phase, .target = target_, .report = report});
  open_.erase(it);
}

void SyncCall::Leave(uint64_t token) {
  MutexLock lock(mu_);
  const auto it = open_.find(token);
  if (it == open_.end() || !stopped_.ok()) return;
  Progress gone{.receiver_id = it->second.id,
                .phase = ReceiverPhase::kFailed,
                .target = target_,
                .report = {}};
  gone.report.message = "the receiver has gone";
  Queue(token, std::move(gone));
  open_.erase(it);
}

void SyncCall::Stop(const Status& why) {
  MutexLock lock(mu_);
  stopped_.Update(why);
}

void SyncCall::Queue(uint64_t token, Progress progress) {
  if (waiting_.insert_or_assign(token, std::move(progress)).second) order_.push_back(token);
}

StatusOr<SyncCall::Step> SyncCall::Poll() {
  MutexLock lock(mu_);
  if (order_.empty()) {
    if (!open_.empty()) DW_RETURN_IF_ERROR(stopped_);
    return Step{.tell = std::nullopt, .over = open_.empty()};
  }
  const auto next = waiting_.find(order_.front());
  order_.pop_front();
  Step step{.tell = std::move(next->second), .over = false};
  waiting_.erase(next);
  return step;
}

void SyncRequests::Add(const std::shared_ptr<SyncCall>& call, bool force_full, uint64_t number) {
  if (!unsent_) unsent_ = Unsent{number, {}};
  std::erase_if(unsent_->callers, [](const Caller& one) { return one.call.expired(); });
  unsent_->callers.push_back({call, force_full});
}

bool SyncRequests::due() const {
  return unsent_ && sent_.size() < kMostSent &&
         std::ranges::any_of(unsent_->callers,
                             [](const Caller& one) { return !one.call.expired(); });
}

std::optional<SyncRequests::Request> SyncRequests::Send() {
  if (!due()) return std::nullopt;
  const Unsent next = *std::exchange(unsent_, std::nullopt);
  Request request{.number = next.number};
  Callers& callers = sent_[next.number];
  for (const Caller& one : next.callers) {
    if (one.call.expired()) continue;
    request.force_full |= one.force_full;
    callers.push_back(one.call);
  }
  return request;
}

std::vector<std::shared_ptr<SyncCall>> SyncRequests::TakeAnswered(uint64_t number) {
  std::vector<std::shared_ptr<SyncCall>> callers;
  const auto it = sent_.find(number);
  if (it == sent_.end()) return callers;
  Append(it->second, &callers);
  sent_.erase(it);
  return callers;
}

std::vector<std::shared_ptr<SyncCall>> SyncRequests::callers() const {
  std::vector<std::shared_ptr<SyncCall>> callers;
  for (const auto& [number, waiting] : sent_) Append(waiting, &callers);
  if (!unsent_) return callers;
  for (const Caller& one : unsent_->callers) {
    if (auto call = one.call.lock()) callers.push_back(std::move(call));
  }
  return callers;
}

}  // namespace deltawire
