#include "receiver/replica/agent_attachments.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "common/base/log.h"

namespace deltawire::receiver {
namespace {

// After so many failed pulls in a row the bytes of the next one are no sign of progress.
constexpr uint32_t kFailuresInProgress = 3;

}  // namespace

AgentAttachments::AgentAttachments(std::vector<std::unique_ptr<Upstream>> upstreams, const Env& env)
    : env_(env),
      agents_(upstreams.size()),
      keeper_(env_.options.model, PointersTo(upstreams), env_.options.seed, *this),
      upstreams_(std::move(upstreams)) {}

AgentAttachments::~AgentAttachments() {
  for (const auto& upstream : upstreams_) upstream->Detach();
}

void AgentAttachments::Stop() {
  keeper_.Stop();
  for (const auto& upstream : upstreams_) upstream->Cancel();
}

ReceiverReport AgentAttachments::MakeReport(size_t /*agent*/) {
  ReceiverReport report;
  report.committed = env_.gate.version().committed();
  ReplicaLine::Shown shown = env_.line.shown();
  report.phase = shown.phase;
  report.message = std::move(shown.message);
  const RunningPull pull = env_.puller.running();
  report.bytes_done = pull.bytes_done();
  report.bytes_total = pull.bytes_expected();
  report.last_pull = env_.puller.totals().last_pull;
  report.group = env_.planner.report();
  MutexLock lock(mu_);
  report.engines = engines_;
  return report;
}

void AgentAttachments::SetEngines(const EnginesServe& engines) {
  {
    MutexLock lock(mu_);
    if (env_.run.stopping() || engines_ == engines) return;
    engines_ = engines;
  }
  SendReports();
}

AgentAttachments::Reported AgentAttachments::ToReport() const {
  return {.phase = env_.line.shown().phase, .group = env_.planner.report()};
}

void AgentAttachments::SendReports() {
  Reported reported = ToReport();
  {
    MutexLock lock(mu_);
    reported_ = std::move(reported);
  }
  for (size_t i = 0; i < upstreams_.size(); ++i) keeper_.Send(i);
  env_.requests.Notify();
}

bool AgentAttachments::SendReportsIfNews() {
  const Reported now = ToReport();
  {
    MutexLock lock(mu_);
    if (reported_ == now) return false;
  }
  SendReports();
  return true;
}

void AgentAttachments::NotifyDownstream() {
  if (!env_.downstream.serves()) return;
  RelayNews news;
  {
    MutexLock lock(mu_);
    news = upstream_news_;
  }
  const RunningPull pull = env_.puller.running();
  if (pull.round() != nullptr && env_.puller.totals().failures_in_row < kFailuresInProgress) {
    news.fetching = pull.target();
    news.fetched_bytes = pull.bytes_done();
    news.applying = env_.line.shown().phase == ReceiverPhase::kApplying;
  }
  env_.downstream.ReportNews(news);
}

void AgentAttachments::Answer(const RequestQueue::Batch& batch, const Status& status) {
  for (const RequestQueue::Remote& r : env_.requests.Answer(batch, status)) {
    keeper_.Send(r.agent, [&](ReceiverReport& report) {
      report.phase = status.ok() ? ReceiverPhase::kCommitted : ReceiverPhase::kFailed;
      report.message = std::string(MessageOf(status));
      report.sync_request = r.number;
    });
  }
}

std::vector<AgentAttachments::View> AgentAttachments::views() const {
  std::vector<View> views;
  for (const auto& upstream : upstreams_) {
    views.push_back({.address = upstream->address(),
                     .in_use = upstream->in_use(),
                     .sender_newest = upstream->sender_newest()});
  }
  return views;
}

bool AgentAttachments::Accepts(size_t agent, const SenderEvent& event) {
  const std::vector<uint64_t>& path = event.relay.path;
  const uint64_t number = env_.options.relay_number;
  if (number == 0 || std::ranges::count(path, number) == 0) return true;
  // Without its events the attachment counts as silent, and is made anew until this ends.
  env_.line.Fail(Errorf(StatusCode::kFailedPrecondition,
                        "{} gets its versions from this relay: a circle of relays; name the "
                        "sender, or a relay nearer to it",
                        upstreams_[agent]->address()),
                 ReplicaLine::Cause::kConnection);
  return false;
}

void AgentAttachments::OnEvent(size_t agent, uint64_t attachment, const SenderEvent& event) {
  if (!TakeEvent(agent, attachment, event)) return;
  // The pull that was judged is cancelled, and not one that has begun since.
  const RunningPull pull = env_.puller.running();
  if (event.sync_request != 0 || env_.planner.Obsoletes(pull)) pull.CancelUnwritten();
  NotifyDownstream();
}

bool AgentAttachments::TakeEvent(size_t agent, uint64_t attachment, const SenderEvent& event) {
  MutexLock lock(mu_);
  Agent& a = agents_[agent];
  if (!keeper_.IsCurrent(agent, attachment)) return false;
  // Before the planner knows the version: a pull of another lineage waits for the description.
  const Identity& newest = event.newest.identity;
  if (!newest.empty()) env_.setup.NoteLineage(agent, newest.lineage);
  const Planner::Change change = env_.planner.NoteEvent(agent, event);
  if (change.all_attached) env_.line.Recover(ReplicaLine::Cause::kConnection);
  if (!a.heard) {
    a.ended.clear();
    LogInfo("model {}: attached to sender {}", env_.options.model, upstreams_[agent]->in_use());
  }
  if (agents_.size() == 1) upstream_news_ = event.relay;
  for (const Identity& version : change.named) env_.commits.NoteNamed(version, SteadyClock::now());
  const RunningPull pull = env_.puller.running();
  if (env_.planner.HasPublished(pull)) env_.puller.MarkPublished();
  env_.planner.NotifyRound(pull);
  if (event.sync_request != 0) {
    env_.requests.AddRemote({agent, event.sync_request, event.force_full});
  }
  // A beat comes every second and changes nothing, except that it brings back an incoming version
  // that the planner has forgotten.
  const bool beat = a.heard && IsBeat(*a.heard, event);
  if (!beat || change.incoming || env_.setup.due()) env_.bell.Ring();
  a.heard = event;
  return true;
}

void AgentAttachments::OnEnded(size_t agent, const Status& why) {
  std::shared_ptr<PullRound> waits;  // for events of the agents
  {
    MutexLock lock(mu_);
    if (const RunningPull pull = env_.puller.running(); pull.awaits_agents()) waits = pull.round();
    agents_[agent].heard.reset();
    const bool was_attached = env_.planner.NoteEnded(agent);
    env_.requests.DropRemote(agent);
    upstream_news_ = {};
    if (env_.run.stopping()) return;
    ShowEnd(agent, was_attached, why);
  }
  env_.bell.Ring();
  if (waits != nullptr) waits->Cancel();
}

void AgentAttachments::ShowEnd(size_t agent, bool was_attached, const Status& why) {
  const std::string& address = upstreams_[agent]->address();
  std::string_view reason = MessageOf(why);
  if (const std::string context = fmt::format("sender {}: Attach: ", address);
      reason.starts_with(context)) {
    reason.remove_prefix(context.size());
  }
  // Each agent's end is logged once, also where several agents are away and end by turns.
  std::string& ended = agents_[agent].ended;
  const auto said = [&ended](const std::string& text) {
    return std::exchange(ended, text) == text;
  };
  // An attachment that is aborted later was taken by another receiver of the same id: no wait.
  const bool taken = was_attached && absl::IsAborted(why);
  if (AsksToWait(why) && !taken) {
    const std::string text = fmt::format("sender {}: {}", address, reason);
    return env_.line.Wait(text, why, ReplicaLine::Cause::kConnection, said(text));
  }
  const std::string text =
      was_attached ? fmt::format("the connection to sender {} ended: {}", address, reason)
                   : fmt::format("cannot attach to sender {}: {}", address, reason);
  // This end cancels the attachment to an upstream that it leaves for another one.
  const auto level = absl::IsCancelled(why) ? LogLevel::kInfo : LogLevel::kWarn;
  if (!said(text)) LogLine(level, "model {}: {}", env_.options.model, text);
  env_.line.FailConnection(text);
}

}  // namespace deltawire::receiver
