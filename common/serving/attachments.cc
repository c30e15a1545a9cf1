#include "common/serving/attachments.h"

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "common/base/human.h"
#include "common/layout/names.h"

namespace deltawire {
namespace {

using Clock = SteadyClock;

// Published versions by which parts in receivers' hands are known. Receivers remember as many.
constexpr size_t kRemembered = 64;

Status Taken(const std::string& model, const std::string& id, const std::string& peer) {
  return Errorf(StatusCode::kAlreadyExists,
                "model \"{}\": receiver \"{}\" is here already, from {}; give each receiver a "
                "--receiver-id of its own (one that has gone frees its name within seconds)",
                model, id, peer);
}

}  // namespace

Status CheckReceiverId(const std::string& id) {
  if (!id.empty() && id.size() <= kMaxReceiverId) return absl::OkStatus();
  return Errorf(StatusCode::kInvalidArgument, "a receiver id of {} bytes; use 1 to {}", id.size(),
                kMaxReceiverId);
}

void Attachments::Publish(const std::string& model, const VersionInfo& info, bool in_order) {
  News news;
  {
    MutexLock lock(mu_);
    Note(model, info, in_order, news);
  }
  Call(news);
}

void Attachments::SetRelay(const std::string& model, const RelayNews& relay) {
  MutexLock lock(mu_);
  relays_[model] = relay;
}

void Attachments::SetIncoming(const std::string& model, const IncomingNews& incoming) {
  News news;
  {
    MutexLock lock(mu_);
    if (incoming.version.empty()) {
      incoming_.erase(model);
      return;
    }
    incoming_[model] = {incoming, next_serial_++};
    for (auto& [token, a] : attached_) {
      if (a.model == model) Wake(a, news);
    }
  }
  Call(news);
}

void Attachments::Note(const std::string& model, const VersionInfo& info, bool in_order,
                       News& news) {
  ended_.erase(model);
  Change& newest = newest_[model];
  // Two publishes may arrive here in reverse order.
  if (!in_order && newest.serial != 0 && IsLater(newest.info.identity, info.identity)) return;
  // A part with equal bytes may be published again under another attempt, which is news for
  // receivers of several agents.
  if (newest.serial != 0 && newest.info.identity == info.identity &&
      newest.info.identity.attempt == info.identity.attempt &&
      newest.info.side_files_hash == info.side_files_hash) {
    return;
  }
  newest = {next_serial_++, info};
  std::deque<Identity>& recent = recent_[model];
  // A version that is published again with other bytes was given up, and so were those after it.
  // With equal bytes receivers need not fetch it, and stay at the attempt before.
  std::erase_if(recent, [&](const Identity& known) {
    return known.lineage == info.identity.lineage && known.id >= info.identity.id &&
           known.root != info.identity.root;
  });
  recent.push_back(info.identity);
  if (recent.size() > kRemembered) recent.pop_front();
  for (auto& [token, a] : attached_) {
    if (a.model == model) Wake(a, news);
  }
  Tell(model, Of::kVersions, news);
}

void Attachments::Forget(const std::string& model, const Status& ended) {
  News news;
  {
    MutexLock lock(mu_);
    newest_.erase(model);
    recent_.erase(model);
    relays_.erase(model);
    incoming_.erase(model);
    if (!ended.ok()) {
      ended_[model] = ended;
      for (auto& [token, a] : attached_) {
        if (a.model == model) Wake(a, news);
      }
    }
    Tell(model, Of::kVersions, news);
  }
  Call(news);
}

Status Attachments::Ended(const std::string& model) const {
  DW_RETURN_IF_ERROR(stopped_);
  const auto ended = ended_.find(model);
  return ended == ended_.end() ? absl::OkStatus() : ended->second;
}

void Attachments::Wake(const Attached& a, News& news) {
  if (a.news != nullptr) news.push_back(a.news);
}

void Attachments::Call(const News& news) {
  for (const auto& one : news) (*one)();
}

void Attachments::Erase(Entry entry, News& news) {
  const Attached& a = entry->second;
  Wake(entry->second, news);
  if (stopped_.ok()) TellCallersGone(entry->first, entry->second, news);  // else they hear why
  Tell(a.model, Of::kReceivers, news);
  by_name_.erase({a.model, a.id});
  if (const auto of = of_principal_.find(a.principal); --of->second == 0) of_principal_.erase(of);
  attached_.erase(entry);
}

bool Attachments::Silent(const Attached& a, Clock::time_point now) const {
  // A receiver whose reports echo no new event does not get the events, so it counts as silent too.
  return now - std::min(a.heard, a.acknowledged) > limits_.silence;
}

StatusOr<uint64_t> Attachments::Attach(const std::string& model, const std::string& id,
                                       const std::string& peer, const std::string& principal,
                                       const SiteOffer& offer) {
  DW_RETURN_IF_ERROR(CheckReceiverId(id));
  News news;
  const auto token = Enter(model, id, peer, principal, offer, news);
  Call(news);  // of attachments that this one replaces
  TellMembers();
  return token;
}

StatusOr<uint64_t> Attachments::Enter(const std::string& model, const std::string& id,
                                      const std::string& peer, const std::string& principal,
                                      const SiteOffer& offer, News& news) {
  MutexLock lock(mu_);
  DW_RETURN_IF_ERROR(stopped_);
  const auto now = Clock::now();
  if (const auto known = by_name_.find({model, id}); known != by_name_.end()) {
    const auto it = attached_.find(known->second);
    const Attached& a = it->second;
    if (a.peer != peer && !Silent(a, now)) return Taken(model, id, a.peer);
    TellGone(a, news);
    Erase(it, news);
  }
  if (attached_.size() >= limits_.most) {
    return Errorf(StatusCode::kResourceExhausted, "model \"{}\": {} receivers are attached already",
                  model, attached_.size());
  }
  const auto of = of_principal_.find(principal);
  if (!principal.empty() && of != of_principal_.end() && of->second >= limits_.most_per_principal) {
    return Errorf(StatusCode::kResourceExhausted,
                  "model \"{}\": {} receivers of {} are attached, which is the most", model,
                  limits_.most_per_principal, principal);
  }
  const uint64_t token = next_token_++;
  Attached& a = attached_[token];
  a.model = model;
  a.id = id;
  a.peer = peer;
  a.principal = principal;
  a.offer = offer;
  a.since = a.heard = a.acknowledged = now;
  by_name_[{model, id}] = token;
  ++of_principal_[principal];
  Tell(model, Of::kReceivers, news);
  return token;
}

void Attachments::Detach(uint64_t token) {
  News news;
  {
    MutexLock lock(mu_);
    if (const auto it = attached_.find(token); it != attached_.end()) {
      TellGone(it->second, news);
      Erase(it, news);
    }
  }
  Call(news);
  TellMembers();
}

const Attachments::Word* Attachments::WordFor(const std::string& model,
                                              const std::string& id) const {
  const auto words = words_.find(model);
  if (words == words_.end()) return nullptr;
  const auto word = words->second.find(id);
  return word == words->second.end() ? nullptr : &word->second;
}

void Attachments::TellGone(const Attached& a, News& news) {
  if (site_observer_ != nullptr && !a.offer.site.empty()) {
    news.push_back(std::make_shared<const std::function<void()>>(
        [observer = site_observer_, model = a.model] { observer->SiteGone(model); }));
  }
  if (observer_ == nullptr || WordFor(a.model, a.id) == nullptr) return;
  NoteMember(a.model, a.id, std::nullopt);
}

void Attachments::NoteMember(const std::string& model, const std::string& id,
                             std::optional<ReceiverReport> report) {
  const auto [newest, first] = newest_event_.try_emplace({model, id});
  if (!first && report && newest->second->report) {
    newest->second->report = std::move(report);
    return;
  }
  member_events_.push_back({.model = model, .id = id, .report = std::move(report)});
  newest->second = std::prev(member_events_.end());
}

void Attachments::TellMembers() {
  MutexLock lock(mu_);
  if (telling_members_) return;  // whoever tells looks again
  telling_members_ = true;
  // Also when an exception passes, so that the next report is told.
  const absl::Cleanup told = [this]()
                                 ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { telling_members_ = false; };
  while (!member_events_.empty()) {
    const auto first = member_events_.begin();
    const auto newest = newest_event_.find({first->model, first->id});
    if (newest->second == first) newest_event_.erase(newest);
    const MemberEvent event = std::move(*first);
    member_events_.pop_front();
    const MutexUnlock unlocked(mu_);
    if (event.report) {
      observer_->Reported(event.model, event.id, *event.report);
    } else {
      observer_->Detached(event.model, event.id);
    }
  }
}

void Attachments::SetWords(const std::string& model, std::map<std::string, GroupWord> words) {
  News news;
  {
    MutexLock lock(mu_);
    std::map<std::string, Word>& known = words_[model];
    std::erase_if(known, [&](const auto& word) { return !words.contains(word.first); });
    for (auto& [id, word] : words) {
      Word& kept = known[id];
      if (kept.serial != 0 && kept.word == word) continue;
      // Of a receiver that went before it had a word nobody was told.
      if (kept.serial == 0 && observer_ != nullptr && !by_name_.contains({model, id})) {
        NoteMember(model, id, std::nullopt);
      }
      kept = {std::move(word), next_serial_++};
    }
    if (known.empty()) words_.erase(model);
    for (auto& [token, a] : attached_) {
      if (a.model != model) continue;
      const Word* word = WordFor(a.model, a.id);
      if ((word == nullptr ? 0 : word->serial) != a.word) Wake(a, news);
    }
  }
  const bool members_changed = !news.empty();
  Call(news);
  TellMembers();
  // Members of groups follow the sender itself.
  if (members_changed && site_observer_ != nullptr) site_observer_->SiteReported(model, true);
}

void Attachments::SetAssignments(const std::string& model,
                                 const std::map<std::string, Assignment>& all) {
  News news;
  {
    MutexLock lock(mu_);
    for (auto& [token, a] : attached_) {
      if (a.model != model) continue;
      const auto assigned = all.find(a.id);
      if (assigned == all.end() || a.assignment == assigned->second) continue;
      a.assignment = assigned->second;
      a.reassigned = true;
      Wake(a, news);
    }
  }
  Call(news);
}

void Attachments::OnNews(uint64_t token, std::function<void()> news) {
  MutexLock lock(mu_);
  const auto it = attached_.find(token);
  if (it == attached_.end()) return;
  it->second.news = std::make_shared<const std::function<void()>>(std::move(news));
}

void Attachments::Report(uint64_t token, const ReceiverReport& report) {
  std::string model;  // empty: nothing was committed since the report before
  bool member = false;
  std::string site_model;  // empty: it says no site
  bool site_changed = false;
  News news;
  {
    MutexLock lock(mu_);
    const auto it = attached_.find(token);
    if (it == attached_.end()) return;
    Attached& a = it->second;
    a.heard = Clock::now();
    if (report.event > a.report.event || report.event == a.number) a.acknowledged = a.heard;
    if (site_observer_ != nullptr && !a.offer.site.empty()) {
      site_model = a.model;
      const auto paused = [](const ReceiverReport& r) { return r.phase == ReceiverPhase::kPaused; };
      site_changed = a.report_serial == 0 || report.follows != a.report.follows ||
                     report.barred != a.report.barred || paused(report) != paused(a.report);
    }
    if (!(report.engines == a.report.engines)) Tell(a.model, Of::kReceivers, news);
    a.report = report;
    if (a.report.message.size() > kMaxReportMessage) {
      a.report.message = FitUtf8(a.report.message, kMaxReportMessage);
    }
    if (!report.committed.empty()) {
      const bool other = !(report.committed == a.committed);
      if (a.report_serial > 0 && other) model = a.model;
      if (other || report.committed.attempt != a.committed.attempt) {
        Tell(a.model, Of::kReceivers, news);
      }
      a.committed = report.committed;  // the same state may have come by another attempt
    }
    ++a.report_serial;
    TellCallers(token, a, news);
    member = observer_ != nullptr && WordFor(a.model, a.id) != nullptr;
    if (member) NoteMember(a.model, a.id, report);
  }
  Call(news);
  if (!site_model.empty()) site_observer_->SiteReported(site_model, site_changed);
  if (member) TellMembers();
  if (!model.empty() && on_committed_) on_committed_(model, report.committed, report.last_pull);
}

StatusOr<Attachments::Due> Attachments::TakeEvent(uint64_t token) {
  News news;
  auto due = [&] {
    MutexLock lock(mu_);
    return Take(token, news);
  }();
  Call(news);
  if (!due.ok()) TellMembers();  // it may have been silent
  return due;
}

StatusOr<Attachments::Due> Attachments::Take(uint64_t token, News& news) {
  DW_RETURN_IF_ERROR(stopped_);
  const auto it = attached_.find(token);
  if (it == attached_.end()) {
    return absl::AbortedError("this attachment has ended, or a newer one took its place");
  }
  Attached& a = it->second;
  DW_RETURN_IF_ERROR(Ended(a.model));
  const auto now = Clock::now();
  if (Silent(a, now)) {
    Status why = Errorf(StatusCode::kDeadlineExceeded,
                        "model \"{}\": receiver \"{}\" at {} has said nothing for {} ms, or takes "
                        "no note of what it is told; attach again",
                        a.model, a.id, a.peer, limits_.silence.count());
    ++silent_[a.model];
    TellGone(a, news);
    a.news = nullptr;  // whoever asks is told by the error
    Erase(it, news);
    return why;
  }
  const auto newest = newest_.find(a.model);
  const bool known = newest != newest_.end();
  const Word* word = WordFor(a.model, a.id);
  const uint64_t word_serial = word == nullptr ? 0 : word->serial;
  const auto coming = incoming_.find(a.model);
  const bool comes = coming != incoming_.end();
  const bool due_now =
      known && (newest->second.serial != a.seen || word_serial != a.word || a.reassigned ||
                a.syncs.due() || (comes && coming->second.serial != a.incoming) || a.number == 0 ||
                now - a.sent >= limits_.beat);
  Due due;
  if (due_now) {
    SenderEvent& event = due.event.emplace();
    if (const auto request = a.syncs.Send()) {
      event.sync_request = request->number;
      event.force_full = request->force_full;
    }
    event.number = ++a.number;
    event.newest = newest->second.info;
    if (const auto relay = relays_.find(a.model); relay != relays_.end()) {
      event.relay = relay->second;
    }
    if (word != nullptr) event.group = word->word;
    if (site_observer_ != nullptr && !a.offer.site.empty()) event.assignment = a.assignment;
    a.reassigned = false;
    if (comes) event.incoming = coming->second.news;
    a.incoming = comes ? coming->second.serial : 0;
    a.seen = newest->second.serial;
    a.word = word_serial;
    a.sent = now;
  }
  const auto silent = std::min(a.heard, a.acknowledged) + limits_.silence;
  const auto beat = known ? a.sent + limits_.beat : silent;
  // One millisecond more, since silence must exceed the limit.
  due.again = std::min(silent, beat) + std::chrono::milliseconds(1);
  return due;
}

std::vector<ReceiverView> Attachments::Receivers(const std::string& model) const {
  MutexLock lock(mu_);
  std::vector<ReceiverView> all;
  for (const auto& [token, a] : attached_) {
    if (!model.empty() && a.model != model) continue;
    all.push_back({.id = a.id,
                   .model = a.model,
                   .peer = a.peer,
                   .attached_seconds = SecondsSince(a.since),
                   .report = a.report,
                   .offer = a.offer,
                   .member = WordFor(a.model, a.id) != nullptr});
  }
  return all;
}

size_t Attachments::attached(const std::string& model) const {
  MutexLock lock(mu_);
  return static_cast<size_t>(std::ranges::count_if(
      attached_, [&](const auto& entry) { return entry.second.model == model; }));
}

size_t Attachments::followers(const std::string& model) const {
  MutexLock lock(mu_);
  return static_cast<size_t>(std::ranges::count_if(attached_, [&](const auto& entry) {
    return entry.second.model == model && !entry.second.report.committed.empty();
  }));
}

Status Attachments::MayUse(const std::string& model, const std::string& id, const std::string& peer,
                           bool* attached) const {
  MutexLock lock(mu_);
  if (attached != nullptr) *attached = false;
  const auto known = by_name_.find({model, id});
  if (known == by_name_.end()) return absl::OkStatus();
  const Attached& a = attached_.at(known->second);
  if (a.peer != peer && !Silent(a, Clock::now())) return Taken(model, id, a.peer);
  if (a.peer == peer && attached != nullptr) *attached = true;
  return absl::OkStatus();
}

uint64_t Attachments::silent(const std::string& model) const {
  MutexLock lock(mu_);
  const auto it = silent_.find(model);
  return it == silent_.end() ? 0 : it->second;
}

StatusOr<std::optional<Attachments::Change>> Attachments::ChangeAfter(const std::string& model,
                                                                      uint64_t seen) const {
  MutexLock lock(mu_);
  DW_RETURN_IF_ERROR(Ended(model));
  const auto it = newest_.find(model);
  if (it == newest_.end() || it->second.serial == seen || it->second.info.identity.empty()) {
    return std::optional<Change>();
  }
  return std::optional<Change>(it->second);
}

Attachments::Listener Attachments::Listen(const std::string& model, Of what,
                                          std::function<void()> news) {
  auto listener = std::make_shared<const std::function<void()>>(std::move(news));
  MutexLock lock(mu_);
  std::erase_if(hearers_, [](const Hearer& h) { return h.news.expired(); });
  hearers_.push_back({model, what, listener});
  return listener;
}

void Attachments::Tell(const std::string& model, Of what, News& news) {
  for (const Hearer& hearer : hearers_) {
    if (!model.empty() && hearer.model != model) continue;
    if (what == Of::kReceivers && hearer.what != Of::kReceivers) continue;
    if (auto listener = hearer.news.lock()) news.push_back(std::move(listener));
  }
}

StatusOr<Attachments::Census> Attachments::CensusOf(const std::string& model, uint64_t version,
                                                    bool part, Until until) const {
  MutexLock lock(mu_);
  DW_RETURN_IF_ERROR(Ended(model));
  return Count(model, version, part, until);
}

Attachments::Census Attachments::Count(const std::string& model, uint64_t version, bool part,
                                       Until until) const {
  Census census{.version = version};
  const auto newest = newest_.find(model);
  if (newest != newest_.end()) census.newest = newest->second.info.identity;
  if (census.version == 0) census.version = census.newest.id.version;
  for (const auto& [token, a] : attached_) {
    if (a.model != model) continue;
    const bool served = until == Until::kServed;
    // Whether a receiver of an older release drives any is not known, so it counts as behind.
    if (served && a.report.engines.engines == 0U) continue;
    ++census.attached;
    const Identity& reached = served ? a.report.engines.oldest : a.committed;
    // A rollback may publish a lower number than receivers hold, so the epochs must be the same.
    const bool same_history = part ? HoldsPart(model, reached)
                                   : reached.lineage == census.newest.lineage &&
                                         reached.id.epoch == census.newest.id.epoch;
    const bool has = !reached.empty() && !census.newest.empty() && same_history &&
                     reached.id.version >= census.version;
    census.committed += has ? 1 : 0;
    if (!has && census.behind.size() < kMostBehind) census.behind.push_back(a.id);
  }
  return census;
}

bool Attachments::HoldsPart(const std::string& model, const Identity& committed) const {
  const auto recent = recent_.find(model);
  if (recent == recent_.end() || committed.attempt == 0) return false;
  const Identity& newest = recent->second.back();
  return std::ranges::any_of(recent->second, [&](const Identity& published) {
    return published.lineage == newest.lineage && published.id.epoch == newest.id.epoch &&
           published.id.version == committed.id.version && published.attempt == committed.attempt;
  });
}

void Attachments::Stop(const Status& why) {
  News news;
  {
    MutexLock lock(mu_);
    stopped_.Update(why);
    for (auto& [token, a] : attached_) {
      Wake(a, news);
      for (const auto& call : a.syncs.callers()) news.push_back(call->news());
    }
    Tell("", Of::kVersions, news);
  }
  Call(news);
}

// Sync requests -------------------------------------------------------------------------------

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
