// The wait for receivers that were asked to sync.
#include <algorithm>

#include "common/base/call_end.h"
#include "common/serving/attachments.h"

namespace deltawire {
namespace {

// How often the wait checks whether its caller has gone; changes wake it at once.
constexpr std::chrono::milliseconds kGoneSlice{200};

}  // namespace

std::vector<uint64_t> Attachments::Ask(const std::string& model,
                                       const std::vector<std::string>& ids, bool force_full,
                                       uint64_t request, News& news) {
  std::vector<uint64_t> asked;
  for (auto& [token, a] : attached_) {
    if (a.model != model) continue;
    if (!ids.empty() && std::find(ids.begin(), ids.end(), a.id) == ids.end()) continue;
    if (a.requests.size() >= kMaxPending) a.requests.erase(a.requests.begin());
    SenderEvent event;
    event.sync_request = request;
    event.force_full = force_full;
    a.requests.push_back(event);
    Wake(a, news);
    asked.push_back(token);
  }
  return asked;
}

std::vector<Attachments::Progress> Attachments::Collect(uint64_t request, const Identity& target,
                                                        std::map<uint64_t, std::string>& names,
                                                        std::map<uint64_t, uint64_t>& seen) {
  std::vector<Progress> news;
  for (auto it = names.begin(); it != names.end();) {
    const uint64_t token = it->first;
    const auto a = attached_.find(token);
    Progress p{
        .receiver_id = it->second, .phase = ReceiverPhase::kFailed, .target = target, .report = {}};
    bool ended = false;
    if (a == attached_.end()) {
      p.report.message = "the receiver has gone";
      ended = true;
    } else if (const auto answer = a->second.answers.find(request);
               answer != a->second.answers.end()) {
      p.report = std::move(answer->second);
      p.phase = p.report.phase;
      a->second.answers.erase(answer);
      ended = true;
    } else if (seen[token] != a->second.report_serial) {
      seen[token] = a->second.report_serial;
      p.report = a->second.report;
      const bool busy =
          p.report.phase == ReceiverPhase::kPulling || p.report.phase == ReceiverPhase::kApplying;
      p.phase = busy ? p.report.phase : ReceiverPhase::kAsked;
    } else {
      ++it;
      continue;
    }
    news.push_back(std::move(p));
    it = ended ? names.erase(it) : std::next(it);
  }
  return news;
}

Status Attachments::TriggerSync(const std::string& model, const std::vector<std::string>& ids,
                                bool force_full,
                                const std::function<bool(const Progress&)>& progress,
                                const std::function<bool()>& gone) {
  std::unique_lock lock(mu_);
  const auto newest = newest_.find(model);
  if (newest == newest_.end() || newest->second.info.identity.empty()) {
    return Errorf(StatusCode::kFailedPrecondition, "model \"{}\": nothing is published yet", model);
  }
  const Identity target = newest->second.info.identity;
  for (const std::string& id : ids) {
    const bool there = std::any_of(attached_.begin(), attached_.end(), [&](const auto& entry) {
      return entry.second.model == model && entry.second.id == id;
    });
    if (!there) {
      return Errorf(StatusCode::kNotFound, "model \"{}\": receiver \"{}\" is not attached", model,
                    id);
    }
  }
  const uint64_t request = next_request_++;
  News told;
  const std::vector<uint64_t> asked = Ask(model, ids, force_full, request, told);
  if (asked.empty()) {
    return Errorf(StatusCode::kNotFound, "model \"{}\": no receiver is attached", model);
  }
  std::map<uint64_t, uint64_t> seen;
  std::map<uint64_t, std::string> names;
  for (const uint64_t token : asked) names[token] = attached_.at(token).id;
  lock.unlock();
  Call(told);
  lock.lock();
  while (!names.empty()) {
    const uint64_t changes = changes_;
    const std::vector<Progress> news = Collect(request, target, names, seen);
    lock.unlock();
    for (const Progress& p : news) {
      if (!progress(p)) return CallerGone();
    }
    if (gone()) return CallerGone();
    lock.lock();
    DW_RETURN_IF_ERROR(stopped_);
    if (news.empty()) cv_.wait_for(lock, kGoneSlice, [&] { return changes_ != changes; });
  }
  return absl::OkStatus();
}

}  // namespace deltawire
