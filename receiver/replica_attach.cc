// The events and ends of a Replica's attachments, and its reports.
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

Report Replica::MakeReport(size_t /*agent*/) {
  MutexLock lock(mu_);
  Report r;
  r.committed = gate_.committed();
  r.phase = ShownPhase();
  r.bytes_done = pull_.bytes_done();
  r.bytes_total = pull_.bytes_expected();
  r.message = line_.message();
  r.last_pull = status_.last_pull;
  r.group = member_.report(MemberSituation());
  r.engines = engines_;
  return r;
}

bool Replica::Accepts(size_t agent, const UpstreamEvent& event) {
  const std::vector<uint64_t>& path = event.relay.path;
  if (options_.relay_number == 0 || std::ranges::count(path, options_.relay_number) == 0) {
    return true;
  }
  // Without its events the attachment counts as silent, and is made anew until this ends.
  MutexLock lock(mu_);
  line_.Fail(Errorf(StatusCode::kFailedPrecondition,
                    "{} gets its versions from this relay: a circle of relays; name the sender, "
                    "or a relay nearer to it",
                    agents_[agent].view.address),
             ReplicaLine::Cause::kConnection);
  cv_.notify_all();
  return false;
}

void Replica::OnEvent(size_t agent, uint64_t attachment, const UpstreamEvent& event) {
  if (!TakeEvent(agent, attachment, event)) return;
  if (event.sync_request != 0 || EarlyPullIsOver()) EndEarlyPull();
  TellNews();
}

bool Replica::TakeEvent(size_t agent, uint64_t attachment, const UpstreamEvent& event) {
  MutexLock lock(mu_);
  AgentLink& a = agents_[agent];
  if (!keeper_.IsCurrent(agent, attachment)) return false;
  const Identity before = follower_.newest(agent);
  const Identity before_coming = follower_.incoming(agent);
  follower_.Event(agent, event);
  if (!a.heard) {
    a.ended.clear();
    LogInfo("model {}: attached to sender {}", options_.model, a.upstream->in_use());
  }
  if (agents_.size() == 1) upstream_news_ = event.relay;
  if (agents_.size() == 1) member_.Told(event.group);
  a.delta_bytes = event.delta_bytes;
  if (!event.newest.empty()) {
    const TraceId trace = TraceOf(event.newest);
    if (!(trace == TraceOf(before)) && !(trace == TraceOf(before_coming))) {
      commits_.Heard(event.newest, Clock::now());
    }
    // A new lineage may come with another layout or part, for which a pull would be refused; so the
    // agent must be asked for them first.
    if (!(a.described == Hash128{} || a.described == event.newest.lineage)) describe_ = true;
    a.described = event.newest.lineage;
    if (pull_.state() == RunningPull::State::kUnwritten && follower_.Published(pull_.parts())) {
      pull_.Published(Clock::now());
      gate_.EndKeepName();
    }
  }
  if (const Identity& coming = event.incoming.version; !coming.empty()) {
    if (!(TraceOf(coming) == TraceOf(before_coming))) commits_.Heard(coming, Clock::now());
  }
  if (pull_.early() && follower_.Has(agent, pull_.parts()[agent])) {
    pull_.round()->Told(agent);
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

void Replica::OnEnded(size_t agent, const Status& why) {
  std::shared_ptr<PullRound> waits;  // for a version of which nothing will be told any more
  MutexLock lock(mu_);
  AgentLink& a = agents_[agent];
  if (pull_.awaits_agents()) waits = pull_.round();
  const bool was_attached = follower_.attached(agent);
  a.heard.reset();
  follower_.Ended(agent);
  requests_.DropRemote(agent);
  upstream_news_ = {};
  if (stopping_) return;
  NoteEnded(a, was_attached, why);
  cv_.notify_all();
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
    return line_.Wait(text, said(text) ? LogLevel::kDebug : LevelOfWait(why));
  }
  const std::string text =
      was_attached ? fmt::format("the connection to sender {} ended: {}", address, reason)
                   : fmt::format("cannot attach to sender {}: {}", address, reason);
  // This end cancels the attachment to an upstream that it leaves for another one.
  const auto level = absl::IsCancelled(why) ? LogLevel::kInfo : LogLevel::kWarn;
  if (!said(text)) LogLine(level, "model {}: {}", options_.model, text);
  line_.Show(text, ReplicaLine::Cause::kConnection);
}

void Replica::SetEngines(const EnginesServe& engines) {
  {
    MutexLock lock(mu_);
    if (stopping_ || engines_ == engines) return;
    engines_ = engines;
  }
  SendAll();
}

void Replica::SendAll() {
  for (size_t i = 0; i < agents_.size(); ++i) keeper_.Send(i);
  answer_listeners_.Call();
}

void Replica::Answer(const RequestQueue::Batch& batch, const Status& status) {
  const std::vector<RequestQueue::Remote> remote = requests_.Answer(batch, status);
  cv_.notify_all();
  if (remote.empty()) return;
  mu_.unlock();
  for (const RequestQueue::Remote& r : remote) {
    keeper_.Send(r.agent, [&](Report& report) {
      report.phase = status.ok() ? ReceiverPhase::kCommitted : ReceiverPhase::kFailed;
      report.message = std::string(MessageOf(status));
      report.sync_request = r.number;
    });
  }
  mu_.lock();
}

}  // namespace deltawire::receiver
