#include "receiver/replica/pull_runner.h"

#include "common/base/log.h"
#include "common/base/trace.h"

namespace deltawire::receiver {

void PullRunner::PullForCallers() {
  const RequestQueue::Batch batch = env_.requests.Take();
  if (batch.empty()) return;
  env_.run.Begin(RunState::Use::kRequest);
  DiscardPrepared();  // a round uses the buffer
  env_.pull.gate.SetLimit(BufferGate::Limit::kNone);
  const auto target = ChooseForCallers(batch.force_full);
  const Status pulled = Run(target, {.force_full = batch.force_full});
  env_.agents.Answer(batch, pulled);
  ReportEnd(pulled.ok());
}

void PullRunner::Pull(const Follower::Target& target, bool hold) {
  if (!env_.run.Begin(RunState::Use::kFollow)) return;
  DiscardPrepared();  // a round uses the buffer
  const Status pulled = Run(target, {.hold = hold});
  ReportEnd(pulled.ok() && !hold);
}

StatusOr<Follower::Target> PullRunner::ChooseForCallers(bool or_older) {
  const std::string& model = env_.pull.options.model;
  if (env_.planner.NeedsNewest()) {
    for (size_t i = 0; i < env_.pull.links.size(); ++i) {
      DW_ASSIGN_OR_RETURN(const Identity newest, env_.pull.links.Newest(i, model));
      env_.planner.Learn(i, newest);
    }
  }
  return env_.planner.SyncTarget(model, or_older);
}

Status PullRunner::Run(const StatusOr<Follower::Target>& chosen, const Puller::Wish& wish) {
  const Follower::Target target = chosen.ok() ? *chosen : Follower::Target();
  const Status pulled = chosen.ok() ? puller_.Pull(target, wish) : chosen.status();
  if (puller_.prepared()) {
    env_.planner.NotePrepared(puller_.prepared_version(), target.incoming);
  }
  const bool paused = IsPause(pulled);
  // A version that does not come after all is not the upstream's failure, nor one of this pull.
  // Nor is one that a member cannot make ready: it says so when its group asks for it.
  const bool ended = absl::IsAborted(pulled) || absl::IsCancelled(pulled) || CannotPrepare();
  const bool withdrawn = target.incoming && !paused && !pulled.ok() && ended;
  if (withdrawn) {
    LogInfo("model {}: {} {}", env_.pull.options.model, MessageOf(pulled),
            ToString(TraceOf(target.whole)));
  }
  env_.planner.NotePull(target, {.status = pulled,
                                 .hold = wish.hold,
                                 .paused = paused,
                                 .withdrawn = withdrawn,
                                 .refused = absl::IsCancelled(puller_.fault())});
  NoteEnd(withdrawn ? absl::OkStatus() : pulled, paused, target.whole);
  return pulled;
}

void PullRunner::CommitPrepared() {
  const Identity target = puller_.prepared_version();
  if (!env_.run.Begin(RunState::Use::kFollow)) return;
  const Status ended = puller_.Commit();
  const bool paused = IsPause(ended);
  env_.planner.NoteCommit(ended, paused, puller_.prepared());
  NoteEnd(ended, paused, target);
  ReportEnd(ended.ok());
}

void PullRunner::NoteEnd(const Status& ended, bool paused, const Identity& target) {
  env_.pull.home.NoteWhole();
  if (!paused) puller_.CountEnd(!ended.ok());
  if (ended.ok()) {
    env_.line.Succeed(RestingPhase());
  } else if (paused) {
    env_.line.SetPhase(ReceiverPhase::kPaused);
  } else {
    // The upstream asks to pull again: what was pulled is not there any more, or makes way.
    const auto level = absl::IsAborted(ended) ? LogLevel::kInfo : LogLevel::kWarn;
    env_.line.Fail(ended, ReplicaLine::Cause::kOther, TraceOf(target), level);
    // The sender may have another layout or part now, or no longer have the model.
    const bool other = absl::IsFailedPrecondition(ended) || absl::IsNotFound(ended);
    if (other && !CannotPrepare()) env_.setup.Renew();
  }
  // Last, since a pause is complete now, and the phase is to say so.
  env_.run.End();
}

void PullRunner::ReportEnd(bool committed) {
  OnProgress();
  if (!committed) return;
  env_.pull.home.WriteDelta();
  env_.pull.gate.version().MakeReady();
}

void PullRunner::DiscardPrepared() {
  if (!puller_.prepared()) return;
  puller_.DiscardPrepared();
  env_.planner.NoteDiscarded();
}

void PullRunner::DiscardUnwritten() {
  env_.run.Begin(RunState::Use::kUpkeep);
  puller_.DiscardUnwritten();
  env_.run.End();
}

ReceiverPhase PullRunner::RestingPhase() const {
  if (env_.run.paused()) return ReceiverPhase::kPaused;
  if (puller_.prepared()) return ReceiverPhase::kPrepared;
  return env_.planner.known().newest ? ReceiverPhase::kIdle : ReceiverPhase::kWaitingForVersion;
}

StatusOr<uint64_t> PullRunner::MayPull(const Follower::Target& target) {
  if (env_.run.EndsPull()) return absl::CancelledError("paused");
  if (target.unwritten() && (env_.requests.wants_pull() || env_.requests.wants_check())) {
    return absl::CancelledError("a caller's request goes first");
  }
  // Agents may have published their parts since the target was chosen.
  env_.planner.NotifyRound(puller_.running());
  return env_.planner.known().delta_bytes;
}

void PullRunner::OnPhase(ReceiverPhase phase) {
  if (env_.line.SetPhase(phase)) OnProgress();
}

void PullRunner::OnProgress() {
  env_.agents.SendReports();
  env_.agents.NotifyDownstream();
}

void PullRunner::OnCommit(const std::vector<PullRound::Result>& results) {
  for (size_t i = 0; i < results.size(); ++i) env_.planner.NotePart(i, results[i].end);
}

}  // namespace deltawire::receiver
