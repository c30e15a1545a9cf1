// How a Replica makes its attachments, keeps them alive with beats, and replaces silent ones.
#include <algorithm>

#include "common/base/log.h"
#include "receiver/replica.h"

namespace deltawire::receiver {

using Clock = SteadyClock;

bool SaysTheSame(const UpstreamEvent& a, const UpstreamEvent& b) {
  // The same state may come by another attempt, which is news.
  const auto same = [](const Identity& x, const Identity& y) {
    return x == y && x.attempt == y.attempt;
  };
  return b.sync_request == 0 && same(a.newest, b.newest) && a.delta_bytes == b.delta_bytes &&
         a.relay == b.relay && a.group == b.group && same(a.group.prepare, b.group.prepare) &&
         same(a.group.commit, b.group.commit) && a.assignment == b.assignment &&
         a.incoming == b.incoming && same(a.incoming.version, b.incoming.version) &&
         same(a.incoming.base, b.incoming.base);
}

void Replica::KeepAttached() {
  std::unique_lock lock(mu_);
  while (!stopping_) {
    bool done = false;
    for (size_t i = 0; i < agents_.size() && !stopping_; ++i) {
      const Follower::Need need = follower_.Needs(i, Clock::now());
      if (need == Follower::Need::kNothing) continue;
      Attend(i, need, lock);
      done = true;
    }
    if (done || stopping_) continue;
    const auto left = follower_.NextNeed() - Clock::now();
    attend_cv_.wait_for(lock, std::max<Clock::duration>(left, Clock::duration(0)));
  }
}

void Replica::Attend(size_t agent, Follower::Need need, std::unique_lock<Mutex>& lock) {
  AgentLink& a = agents_[agent];
  if (need == Follower::Need::kDetach) {
    ++status_.lost_attachments;
    const bool silent = !follower_.broken(agent);
    if (silent) {
      LogWarn("model {}: sender {} has been silent for {} ms: attaching anew", options_.model,
              a.view.address, Follower::kSilence.count());
    }
    const uint64_t attachment = a.attachment;
    lock.unlock();
    // First the reason: Detach ends the attachment as cancelled, which says nothing.
    OnEnded(agent, attachment, absl::UnavailableError(silent ? "silent" : "events were lost"));
    a.upstream->Detach();
    lock.lock();
    return;
  }
  const bool attach = need == Follower::Need::kAttach;
  if (attach) {
    follower_.Attaching(agent, Clock::now());
    ++a.attachment;
    a.heard.reset();
  }
  if (!attach) {
    lock.unlock();
    SendTo(agent);
    lock.lock();
    return;
  }
  const uint64_t attachment = a.attachment;
  const Report report = MakeReport(agent);
  follower_.Sent(agent, Clock::now());
  lock.unlock();
  const Status attached = a.upstream->Attach(
      options_.model, report,
      [this, agent, attachment](const UpstreamEvent& e) { OnEvent(agent, attachment, e); },
      [this, agent, attachment](const Status& why) { OnEnded(agent, attachment, why); });
  if (!attached.ok()) OnEnded(agent, attachment, attached);
  lock.lock();
}

void Replica::OnEvent(size_t agent, uint64_t attachment, const UpstreamEvent& event) {
  if (!TakeEvent(agent, attachment, event)) return;
  if (event.sync_request != 0 || EarlyPullIsOver()) EndEarlyPull();
  TellNews();
}

bool Replica::TakeEvent(size_t agent, uint64_t attachment, const UpstreamEvent& event) {
  std::lock_guard lock(mu_);
  AgentLink& a = agents_[agent];
  if (attachment != a.attachment) return false;
  if (options_.relay_number != 0 &&
      std::ranges::find(event.relay.path, options_.relay_number) != event.relay.path.end()) {
    // Without its events the attachment counts as silent, and is made anew until this ends.
    SetMessage(Errorf(StatusCode::kFailedPrecondition,
                      "{} gets its versions from this relay: a circle of relays; name the sender, "
                      "or a relay nearer to it",
                      a.view.address));
    connection_failed_ = true;
    return false;
  }
  const Identity before = follower_.newest(agent);
  const Identity before_coming = follower_.incoming(agent);
  const Status taken = follower_.Event(agent, event, Clock::now());
  if (!taken.ok()) {
    if (absl::IsDataLoss(taken)) LogWarn("model {}: {}", options_.model, MessageOf(taken));
    attend_cv_.notify_all();
    return false;
  }
  if (!a.heard) {
    a.ended.clear();
    LogInfo("model {}: attached to sender {}", options_.model, a.upstream->in_use());
  }
  if (agents_.size() == 1) upstream_news_ = event.relay;
  if (agents_.size() == 1) member_.Told(event.group);
  a.delta_bytes = event.delta_bytes;
  if (!event.newest.empty()) {
    const TraceId trace = TraceOf(event.newest);
    if (!(trace == TraceOf(before)) && !(trace == TraceOf(before_coming))) Told(event.newest);
    // A new lineage may come with another layout or part, for which a pull would be refused; so the
    // agent must be asked for them first.
    if (!(a.described == Hash128{} || a.described == event.newest.lineage)) describe_ = true;
    a.described = event.newest.lineage;
    if (round_ != nullptr && round_unwritten_ && !round_published_ &&
        follower_.Published(round_parts_)) {
      round_published_ = {Clock::now(), status_.bytes_done};
      keeps_name_ = false;
    }
  }
  if (const Identity& coming = event.incoming.version; !coming.empty()) {
    if (!(TraceOf(coming) == TraceOf(before_coming))) Told(coming);
  }
  if (round_ != nullptr && round_unwritten_ && follower_.Has(agent, round_parts_[agent])) {
    round_->Told(agent);
  }
  if (event.sync_request != 0) {
    requests_.AddRemote({agent, event.sync_request, event.force_full});
  }
  // A beat that says what the one before said comes every second and changes nothing, except that
  // it brings back an incoming version that the follower had given up.
  const bool restored = !(before_coming == event.incoming.version);
  if (!a.heard || restored || describe_ || !SaysTheSame(*a.heard, event)) cv_.notify_all();
  a.heard = event;
  return true;
}

void Replica::OnEnded(size_t agent, uint64_t attachment, const Status& why) {
  std::shared_ptr<PullRound> waits;  // for a version of which nothing will be told any more
  std::unique_lock lock(mu_);
  AgentLink& a = agents_[agent];
  if (attachment != a.attachment) return;
  if (round_incoming_) waits = round_;
  const bool was_attached = follower_.attached(agent);
  ++a.attachment;  // later calls for this attachment are ignored
  follower_.Ended(agent, why, Clock::now());
  requests_.DropRemote(agent);
  upstream_news_ = {};
  if (stopping_) return;
  NoteEnded(a, was_attached, why);
  attend_cv_.notify_all();
  lock.unlock();
  if (waits != nullptr) waits->Cancel();
}

void Replica::NoteEnded(AgentLink& a, bool was_attached, const Status& why) {
  const std::string& address = a.view.address;
  std::string_view reason = MessageOf(why);
  if (const std::string context = fmt::format("sender {}: Attach: ", address);
      reason.starts_with(context)) {
    reason.remove_prefix(context.size());
  }
  // Each agent's end is logged once, also where several agents are away and end by turns.
  const auto said = [&a](const std::string& text) { return std::exchange(a.ended, text) == text; };
  // An attachment that is aborted later was taken by another receiver of the same id: no wait.
  const bool taken = was_attached && absl::IsAborted(why);
  if (AsksToWait(why) && !taken) {
    const std::string text = fmt::format("sender {}: {}", address, reason);
    return SetWaiting(text, said(text) ? LogLevel::kDebug : LevelOfWait(why));
  }
  const std::string text =
      was_attached ? fmt::format("the connection to sender {} ended: {}", address, reason)
                   : fmt::format("cannot attach to sender {}: {}", address, reason);
  // This end cancels the attachment to an upstream that it leaves for another one.
  const auto level = absl::IsCancelled(why) ? LogLevel::kInfo : LogLevel::kWarn;
  if (!said(text)) LogLine(level, "model {}: {}", options_.model, text);
  Show(ReceiverPhase::kFailed, text);
  connection_failed_ = true;
}

Report Replica::MakeReport(size_t agent) const {
  Report r;
  r.committed = status_.committed;
  r.phase = status_.phase;
  r.bytes_done = status_.bytes_done;
  r.bytes_total = status_.bytes_total;
  r.message = status_.message;
  r.last_pull = status_.last_pull;
  r.event = follower_.last_event(agent);
  r.group = member_.report(MemberSituation());
  r.engines = engines_;
  return r;
}

void Replica::SendTo(size_t agent, const std::function<void(Report&)>& change) {
  // Else what one thread saw first could be sent last, and stand until the next beat.
  const std::lock_guard one_at_a_time(send_mu_);
  Report report;
  {
    std::lock_guard lock(mu_);
    if (!follower_.attached(agent)) return;
    report = MakeReport(agent);
    follower_.Sent(agent, Clock::now());
  }
  if (change) change(report);
  agents_[agent].upstream->Send(report);
}

void Replica::SendAll() {
  for (size_t i = 0; i < agents_.size(); ++i) SendTo(i);
  answer_listeners_.Call();
}

void Replica::Answer(std::unique_lock<Mutex>& lock, const RequestQueue::Batch& batch,
                     const Status& status) {
  const std::vector<RequestQueue::Remote> remote = requests_.Answer(batch, status);
  cv_.notify_all();
  if (remote.empty()) return;
  lock.unlock();
  for (const RequestQueue::Remote& r : remote) {
    SendTo(r.agent, [&](Report& report) {
      report.phase = status.ok() ? ReceiverPhase::kCommitted : ReceiverPhase::kFailed;
      report.message = std::string(MessageOf(status));
      report.sync_request = r.number;
    });
  }
  lock.lock();
}

}  // namespace deltawire::receiver
