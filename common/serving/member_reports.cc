#include "common/serving/member_reports.h"

#include "absl/cleanup/cleanup.h"

namespace deltawire {

void MemberReports::Add(const std::string& model, const std::string& id,
                        std::optional<ReceiverReport> report) {
  MutexLock lock(mu_);
  const auto [newest, first] = newest_.try_emplace({model, id});
  if (!first && report && newest->second->report) {
    newest->second->report = std::move(report);
    return;
  }
  events_.push_back({.model = model, .id = id, .report = std::move(report)});
  newest->second = std::prev(events_.end());
}

void MemberReports::Deliver(MemberObserver& observer) {
  MutexLock lock(mu_);
  if (delivering_) return;
  delivering_ = true;
  // An exception must not stop later deliveries.
  const absl::Cleanup done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { delivering_ = false; };
  while (!events_.empty()) {
    const auto first = events_.begin();
    const auto newest = newest_.find({first->model, first->id});
    if (newest->second == first) newest_.erase(newest);
    const Event event = std::move(*first);
    events_.pop_front();
    const MutexUnlock unlocked(mu_);
    if (event.report) {
      observer.Reported(event.model, event.id, *event.report);
    } else {
      observer.Detached(event.model, event.id);
    }
  }
}

}  // namespace deltawire
