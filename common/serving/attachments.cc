#include "common/serving/attachments.h"

#include <algorithm>

#include "common/base/human.h"

namespace deltawire {
namespace {

using Clock = SteadyClock;
using Topic = ModelWatchers::Topic;

Status Taken(const AttachedReceiver::Who& who) {
  return Errorf(StatusCode::kAlreadyExists,
                "model \"{}\": receiver \"{}\" is attached already, from {}; give each receiver a "
                "--receiver-id of its own (a receiver that has gone frees its id within seconds)",
                who.model, who.id, who.peer);
}

void Run(const DueCalls& calls) {
  for (const auto& call : calls) (*call)();
}

}  // namespace

Status CheckReceiverId(const std::string& id) {
  if (!id.empty() && id.size() <= kMaxReceiverId) return absl::OkStatus();
  return Errorf(StatusCode::kInvalidArgument, "a receiver id of {} bytes; use 1 to {}", id.size(),
                kMaxReceiverId);
}

Attachments::Attachments(const AttachmentLimits& limits)
    : limits_(limits), feed_(watchers_, [this](const std::string& model) { Wake(model); }) {}

void Attachments::Wake(const std::string& model) {
  DueCalls calls;
  ForEach(model, [&](const AttachedReceiver& r) { r.Wake(calls); });
  Run(calls);
}

void Attachments::Erase(Entry entry, DueCalls& calls) {
  const auto later = [&](std::function<void()> call) {
    calls.push_back(std::make_shared<const std::function<void()>>(std::move(call)));
  };
  entry->second.EndSyncs(absl::OkStatus(), calls);
  const AttachedReceiver::Who& who = entry->second.who();
  later([this, model = who.model] { watchers_.Notify(model, Topic::kReceivers); });
  if (site_observer_ != nullptr && !who.offer.site.empty()) {
    later([observer = site_observer_, model = who.model] { observer->SiteGone(model); });
  }
  if (WordFor(who.model, who.id) != nullptr) member_reports_.Add(who.model, who.id, std::nullopt);
  by_name_.erase({who.model, who.id});
  if (const auto of = of_principal_.find(who.principal); --of->second == 0) of_principal_.erase(of);
  attached_.erase(entry);
}

StatusOr<uint64_t> Attachments::Attach(const std::string& model, const std::string& id,
                                       const std::string& peer, const std::string& principal,
                                       const SiteOffer& offer) {
  DW_RETURN_IF_ERROR(CheckReceiverId(id));
  DueCalls calls;
  const auto token = Enter(
      {.model = model, .id = id, .peer = peer, .principal = principal, .offer = offer}, calls);
  Run(calls);
  if (token.ok()) watchers_.Notify(model, Topic::kReceivers);
  DeliverReports();
  return token;
}

StatusOr<uint64_t> Attachments::Enter(AttachedReceiver::Who who, DueCalls& calls) {
  MutexLock lock(mu_);
  DW_RETURN_IF_ERROR(feed_.stopped());
  const auto now = Clock::now();
  if (const auto known = by_name_.find({who.model, who.id}); known != by_name_.end()) {
    const auto it = attached_.find(known->second);
    const AttachedReceiver& old = it->second;
    if (old.who().peer != who.peer && !old.IsSilent(now, limits_.silence)) return Taken(old.who());
    old.Wake(calls);
    Erase(it, calls);
  }
  if (attached_.size() >= limits_.most) {
    return Errorf(StatusCode::kResourceExhausted, "model \"{}\": {} receivers are attached already",
                  who.model, attached_.size());
  }
  const auto of = of_principal_.find(who.principal);
  if (!who.principal.empty() && of != of_principal_.end() &&
      of->second >= limits_.most_per_principal) {
    return Errorf(StatusCode::kResourceExhausted,
                  "model \"{}\": {} receivers of {} are attached, which is the most", who.model,
                  limits_.most_per_principal, who.principal);
  }
  const uint64_t token = next_token_++;
  by_name_[{who.model, who.id}] = token;
  ++of_principal_[who.principal];
  attached_.try_emplace(token, token, std::move(who), now);
  return token;
}

void Attachments::Detach(uint64_t token) {
  DueCalls calls;
  {
    MutexLock lock(mu_);
    if (const auto it = attached_.find(token); it != attached_.end()) {
      it->second.Wake(calls);
      Erase(it, calls);
    }
  }
  Run(calls);
  DeliverReports();
}

void Attachments::DeliverReports() {
  if (member_observer_ != nullptr) member_reports_.Deliver(*member_observer_);
}

const Attachments::Word* Attachments::WordFor(const std::string& model,
                                              const std::string& id) const {
  const auto words = words_.find(model);
  if (words == words_.end()) return nullptr;
  const auto word = words->second.find(id);
  return word == words->second.end() ? nullptr : &word->second;
}

void Attachments::SetWords(const std::string& model, std::map<std::string, GroupWord> words) {
  DueCalls calls;
  {
    MutexLock lock(mu_);
    std::map<std::string, Word>& known = words_[model];
    std::erase_if(known, [&](const auto& word) { return !words.contains(word.first); });
    for (auto& [id, word] : words) {
      Word& kept = known[id];
      if (kept.serial != 0 && kept.word == word) continue;
      // The observer has not seen the end of an attachment that had no word.
      if (kept.serial == 0 && !by_name_.contains({model, id})) {
        member_reports_.Add(model, id, std::nullopt);
      }
      kept = {std::move(word), next_serial_++};
    }
    if (known.empty()) words_.erase(model);
    for (const auto& [token, r] : attached_) {
      if (r.who().model == model && !r.HasWord(WordFor(model, r.who().id))) r.Wake(calls);
    }
  }
  Run(calls);
  DeliverReports();
  // Members of groups follow the sender itself.
  if (!calls.empty() && site_observer_ != nullptr) site_observer_->SiteReported(model, true);
}

void Attachments::SetAssignments(const std::string& model,
                                 const std::map<std::string, Assignment>& all) {
  DueCalls calls;
  {
    MutexLock lock(mu_);
    for (auto& [token, r] : attached_) {
      if (r.who().model != model) continue;
      const auto assigned = all.find(r.who().id);
      if (assigned != all.end() && r.Assign(assigned->second)) r.Wake(calls);
    }
  }
  Run(calls);
}

void Attachments::OnNews(uint64_t token, std::function<void()> news) {
  MutexLock lock(mu_);
  if (const auto it = attached_.find(token); it != attached_.end()) {
    it->second.SetNews(std::move(news));
  }
}

void Attachments::Report(uint64_t token, const ReceiverReport& report) {
  AttachedReceiver::Noted noted;
  std::string model;
  bool has_site = false;
  DueCalls calls;
  {
    MutexLock lock(mu_);
    const auto it = attached_.find(token);
    if (it == attached_.end()) return;
    noted = it->second.TakeReport(report, Clock::now(), calls);
    const AttachedReceiver::Who& who = it->second.who();
    model = who.model;
    has_site = !who.offer.site.empty();
    if (WordFor(model, who.id) != nullptr) member_reports_.Add(model, who.id, report);
  }
  Run(calls);
  if (noted.census) watchers_.Notify(model, Topic::kReceivers);
  if (has_site && site_observer_ != nullptr) site_observer_->SiteReported(model, noted.site);
  DeliverReports();
  if (noted.committed && on_committed_) on_committed_(model, report.committed, report.last_pull);
}

StatusOr<Attachments::Due> Attachments::TakeEvent(uint64_t token) {
  DueCalls calls;
  Status silent;
  {
    MutexLock lock(mu_);
    DW_RETURN_IF_ERROR(feed_.stopped());
    const auto it = attached_.find(token);
    if (it == attached_.end()) {
      return absl::AbortedError("this attachment has ended, or a newer one took its place");
    }
    AttachedReceiver& r = it->second;
    const AttachedReceiver::Who& who = r.who();
    DW_ASSIGN_OR_RETURN(const VersionFeed::State state, feed_.StateOf(who.model));
    const auto now = Clock::now();
    if (!r.IsSilent(now, limits_.silence)) {
      return r.TakeEvent(state, WordFor(who.model, who.id), site_observer_ != nullptr, limits_,
                         now);
    }
    silent = Errorf(StatusCode::kDeadlineExceeded,
                    "model \"{}\": receiver \"{}\" at {} has not reported or acknowledged an event "
                    "for {} ms; attach again",
                    who.model, who.id, who.peer, limits_.silence.count());
    ++silent_[who.model];
    Erase(it, calls);
  }
  Run(calls);
  DeliverReports();
  return silent;
}

std::vector<ReceiverView> Attachments::Receivers(const std::string& model) const {
  MutexLock lock(mu_);
  std::vector<ReceiverView> all;
  for (const auto& [token, r] : attached_) {
    const AttachedReceiver::Who& who = r.who();
    if (!model.empty() && who.model != model) continue;
    all.push_back({.id = who.id,
                   .model = who.model,
                   .peer = who.peer,
                   .attached_seconds = SecondsSince(r.since()),
                   .report = r.report(),
                   .offer = who.offer,
                   .member = WordFor(who.model, who.id) != nullptr});
  }
  return all;
}

void Attachments::ForEach(const std::string& model,
                          const std::function<void(const AttachedReceiver&)>& visit) const {
  MutexLock lock(mu_);
  for (const auto& [token, r] : attached_) {
    if (r.who().model == model) visit(r);
  }
}

Attachments::Counts Attachments::CountsOf(const std::string& model) const {
  Counts counts;
  MutexLock lock(mu_);
  for (const auto& [token, r] : attached_) {
    if (r.who().model != model) continue;
    ++counts.attached;
    counts.followers += r.report().committed.empty() ? 0 : 1;
  }
  if (const auto it = silent_.find(model); it != silent_.end()) counts.silent = it->second;
  return counts;
}

Status Attachments::MayUse(const std::string& model, const std::string& id, const std::string& peer,
                           bool* attached) const {
  MutexLock lock(mu_);
  if (attached != nullptr) *attached = false;
  const auto known = by_name_.find({model, id});
  if (known == by_name_.end()) return absl::OkStatus();
  const AttachedReceiver& r = attached_.at(known->second);
  if (r.who().peer != peer) {
    return r.IsSilent(Clock::now(), limits_.silence) ? absl::OkStatus() : Taken(r.who());
  }
  if (attached != nullptr) *attached = true;
  return absl::OkStatus();
}

StatusOr<std::shared_ptr<SyncCall>> Attachments::AskSync(const std::string& model,
                                                         const std::vector<std::string>& ids,
                                                         bool force_full,
                                                         std::function<void()> news) {
  DueCalls calls;
  std::shared_ptr<SyncCall> call;
  {
    MutexLock lock(mu_);
    DW_ASSIGN_OR_RETURN(const VersionFeed::State state, feed_.StateOf(model));
    if (state.newest.info.identity.empty()) {
      return Errorf(StatusCode::kFailedPrecondition, "model \"{}\": nothing is published yet",
                    model);
    }
    for (const std::string& id : ids) {
      if (by_name_.contains({model, id})) continue;
      return Errorf(StatusCode::kNotFound, "model \"{}\": receiver \"{}\" is not attached", model,
                    id);
    }
    bool asked = false;
    call = std::make_shared<SyncCall>(state.newest.info.identity, std::move(news));
    for (auto& [token, r] : attached_) {
      if (r.who().model != model) continue;
      if (!ids.empty() && std::ranges::find(ids, r.who().id) == ids.end()) continue;
      r.AddSync(call, force_full, next_request_++);
      r.Wake(calls);
      asked = true;
    }
    if (!asked) {
      return Errorf(StatusCode::kNotFound, "model \"{}\": no receiver is attached", model);
    }
  }
  Run(calls);
  return call;
}

void Attachments::Stop(const Status& why) {
  feed_.Stop(why);
  DueCalls calls;
  {
    MutexLock lock(mu_);
    for (auto& [token, r] : attached_) {
      r.Wake(calls);
      r.EndSyncs(why, calls);
    }
  }
  Run(calls);
  watchers_.Notify("", Topic::kVersions);
}

}  // namespace deltawire
