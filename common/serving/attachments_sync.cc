// The requests to sync that callers have attached receivers answer.
#include <algorithm>

#include "common/serving/attachments.h"

namespace deltawire {

StatusOr<std::shared_ptr<SyncCall>> Attachments::AskSync(const std::string& model,
                                                         const std::vector<std::string>& ids,
                                                         bool force_full,
                                                         std::function<void()> news) {
  News told;
  std::shared_ptr<SyncCall> call;
  {
    MutexLock lock(mu_);
    DW_RETURN_IF_ERROR(stopped_);
    const auto newest = newest_.find(model);
    if (newest == newest_.end() || newest->second.info.identity.empty()) {
      return Errorf(StatusCode::kFailedPrecondition, "model \"{}\": nothing is published yet",
                    model);
    }
    for (const std::string& id : ids) {
      if (by_name_.contains({model, id})) continue;
      return Errorf(StatusCode::kNotFound, "model \"{}\": receiver \"{}\" is not attached", model,
                    id);
    }
    call = std::make_shared<SyncCall>(newest->second.info.identity, std::move(news));
    bool asked = false;
    for (auto& [token, a] : attached_) {
      if (a.model != model) continue;
      if (!ids.empty() && std::find(ids.begin(), ids.end(), a.id) == ids.end()) continue;
      a.syncs.Add(call, force_full, next_request_++);
      call->Asked(token, a.id);
      if (a.report_serial > 0) call->Reported(token, a.report);
      Wake(a, told);
      asked = true;
    }
    if (!asked) {
      return Errorf(StatusCode::kNotFound, "model \"{}\": no receiver is attached", model);
    }
  }
  Call(told);
  return call;
}

StatusOr<Attachments::SyncStep> Attachments::Poll(SyncCall& call) const {
  MutexLock lock(mu_);
  SyncStep step;
  step.tell = call.Take();
  if (step.tell) return step;
  step.over = call.over();
  if (!step.over) DW_RETURN_IF_ERROR(stopped_);
  return step;
}

void Attachments::TellCallers(uint64_t token, Attached& a, News& news) {
  if (a.report.sync_request != 0) {
    for (const auto& call : a.syncs.Answered(a.report.sync_request)) {
      call->Answered(token, a.report);
      news.push_back(call->news());
    }
    if (a.syncs.due()) Wake(a, news);
  }
  for (const auto& call : a.syncs.callers()) {
    if (call->Reported(token, a.report)) news.push_back(call->news());
  }
}

void Attachments::TellCallersGone(uint64_t token, Attached& a, News& news) {
  for (const auto& call : a.syncs.callers()) {
    call->Gone(token);
    news.push_back(call->news());
  }
}

}  // namespace deltawire
