// A Replica's pulls, from the choice or the request of a state to the commit or the reported error.
#include <algorithm>
#include <chrono>
#include <optional>

#include "common/base/human.h"
#include "common/base/log.h"
#include "receiver/replica.h"

namespace deltawire::receiver {
namespace {

using Clock = SteadyClock;

// After so many root mismatches in a row every chunk is fetched: a sender that leaves a chunk out
// of its delta may do so every time.
constexpr int kMismatchesBeforeFull = 2;

// After so many failed pulls in a row the bytes of the next one are no sign of progress.
constexpr uint32_t kFailuresInProgress = 3;

// "5 fast, 3 tight, 0 dense".
std::string CodecsText(const FormCounts& forms) {
  std::string text;
  for (size_t i = FormCounts::kRaw + 1; i < kernels::kForms; ++i) {
    text +=
        fmt::format("{}{} {}", text.empty() ? "" : ", ", forms.chunks[i], kernels::kFormNames[i]);
  }
  return text;
}

}  // namespace

void Replica::Pull(Follower::Target target, bool hold) {
  DropPrepared();  // a round uses the buffer
  const RequestQueue::Batch batch = requests_.Take();
  SetPauseEnds(paused_, !batch.empty());
  hold = hold && batch.empty();
  using_buffer_ = true;
  waited_before_ = gate_.waits().ended_seconds;
  mu_.unlock();
  Status pulled;
  fault_ = absl::CancelledError("not pulled");
  gate_.SetLimit(BufferGate::Limit::kNone);
  if (!batch.empty()) {
    auto asked = AskNewest(batch.force_full);
    pulled = asked.status();
    if (asked.ok()) target = std::move(*asked);
  }
  if (pulled.ok()) DropEarlyUnless(target.whole);
  while (pulled.ok()) {
    pulled = RunRound(target, batch.force_full, hold);
    // A reader kept the buffer from being changed, so a whole chunk that had arrived was lost. The
    // next round starts only when the buffer may be changed.
    if (pulled.ok() || gate_.refusal() != BufferGate::Refusal::kReader) break;
    pulled = gate_.WaitWritable(*buffer_);
  }
  if (pulled.ok()) early_ = {};
  if (target.unwritten() && !pulled.ok()) early_ = target;
  links_.PullEnded(fault_);
  mu_.lock();
  const bool paused = absl::IsCancelled(pulled) && (paused_ || stopping_);
  const bool reached = hold || !IsLater(target.whole, gate_.committed());
  // A version that does not come after all is not the upstream's failure, nor one of this pull.
  // Nor is one that a member cannot make ready: it says so when its group asks for it.
  const bool ended = absl::IsAborted(pulled) || absl::IsCancelled(pulled) || CannotPrepare();
  const bool withdrawn = target.incoming && !paused && !pulled.ok() && ended;
  if (withdrawn) {
    LogInfo("model {}: {} {}", options_.model, MessageOf(pulled), ToString(TraceOf(target.whole)));
  }
  if (target.incoming && !pulled.ok()) follower_.ForgetIncoming(target);
  if (!paused && !withdrawn) follower_.PullEnded(pulled, reached, Clock::now());
  if (target.exact && !target.incoming && !paused) NoteForGroup(pulled, target.whole, hold);
  NoteEnd(withdrawn ? absl::OkStatus() : pulled, target.whole);
  Answer(batch, pulled);
  mu_.unlock();
  SendAll();
  TellNews();
  // Nobody who waits for the commit waits for this.
  if (pulled.ok() && !hold) {
    LeaveDelta();
    gate_.MakeReady();
  }
  mu_.lock();
  slice_due_ = true;
}

void Replica::NoteEnd(const Status& pulled, const Identity& target) {
  using_buffer_ = false;
  last_whole_ = buffer_->last_whole();
  // A pull that a pause ended has not failed.
  const bool paused = absl::IsCancelled(pulled) && (paused_ || stopping_);
  failed_in_row_ = pulled.ok() ? 0 : failed_in_row_ + (paused ? 0 : 1);
  if (pulled.ok()) {
    line_.Succeed(RestingPhase());
  } else if (paused) {
    line_.Set(ReceiverPhase::kPaused);
  } else {
    ++status_.pull_failures;
    // The upstream asks to pull again: what was pulled is not there any more, or makes way.
    const auto level = absl::IsAborted(pulled) ? LogLevel::kInfo : LogLevel::kWarn;
    line_.Fail(pulled, ReplicaLine::Cause::kOther, TraceOf(target), level);
    // The sender may have another layout or part now, or no longer have the model.
    const bool other = absl::IsFailedPrecondition(pulled) || absl::IsNotFound(pulled);
    if (other && !CannotPrepare()) describe_ = true;
  }
  answered_ = member_.report(MemberSituation());
  cv_.notify_all();
}

void Replica::LeaveDelta() {
  const Status left = delta_files_.Put(*buffer_, buffer_->committed(), sink_->Applied());
  if (!left.ok()) {
    LogWarn("model {}: engines have to read this version whole: {} {}", options_.model,
            MessageOf(left), ToString(TraceOf(buffer_->committed())));
  }
  if (!buffer_->catches_up()) sink_->ForgetApplied();
}

void Replica::TellNews() {
  if (!serving_.serves()) return;
  RelayNews news;
  {
    MutexLock lock(mu_);
    news = upstream_news_;
    if (pull_.round() != nullptr && failed_in_row_ < kFailuresInProgress) {
      news.fetching = pull_.target();
      news.fetched_bytes = pull_.bytes_done();
      news.applying = ShownPhase() == ReceiverPhase::kApplying;
    }
  }
  serving_.News(news);
}

Identity Replica::Held() const {
  MutexLock lock(mu_);
  return Situation().held();
}

StatusOr<Follower::Target> Replica::AskNewest(bool or_older) {
  {
    MutexLock lock(mu_);
    if (member_.bound()) {
      DW_ASSIGN_OR_RETURN(const Identity goal, member_.SyncGoal(MemberSituation()));
      return Follower::Exactly(goal);
    }
  }
  // Several agents are asked now: their last events may be older than a publish that the caller of
  // Sync knows of. A single sender's pull ends at its newest state in any case.
  for (size_t i = 0; i < agents_.size(); ++i) {
    {
      MutexLock lock(mu_);
      if (agents_.size() == 1 && !follower_.newest(i).empty()) break;
    }
    DW_ASSIGN_OR_RETURN(const Identity newest, agents_[i].upstream->Newest(options_.model));
    MutexLock lock(mu_);
    follower_.Learn(i, newest);
  }
  MutexLock lock(mu_);
  Follower::Situation situation = Situation();
  situation.requested = true;
  Follower::Choice choice = follower_.Next(situation, Clock::now());
  const bool older = IsLater(situation.held(), choice.target.whole);
  if (choice.pull && (or_older || !older)) return std::move(choice.target);
  return Errorf(StatusCode::kFailedPrecondition, "model \"{}\": {}", options_.model, choice.why);
}

PullRound::Env Replica::RoundEnv() {
  return {.model = options_.model,
          .buffer = *buffer_,
          .gate = gate_,
          .sink = *sink_,
          .history = history_,
          .side_files = side_files_,
          .pool = pool_,
          .rates = rates_,
          .transport = transport_,
          .stream_timeout = options_.stream_timeout,
          .sockets = options_.sockets,
          .connect_ahead = options_.connect_ahead,
          .allow_code_files = options_.allow_code_files,
          .progress = [this](size_t agent, uint64_t bytes) { OnProgress(agent, bytes); },
          .published =
              [this] {
                MutexLock lock(mu_);
                return pull_.published();
              }};
}

void Replica::SayNewLineage(const Identity& target) {
  const Identity held = buffer_->last_whole();
  const Hash128 before = std::exchange(lineage_, target.lineage);
  if (held.empty() || target.lineage == Hash128{}) return;
  if (held.lineage == target.lineage || before == target.lineage) return;
  LogInfo("model {}: the sender has begun a new lineage, {}; leaving {} for {}", options_.model,
          target.lineage.Hex().substr(0, 8), DescribeFully(held), ToString(target));
}

Status Replica::RunRound(const Follower::Target& target, bool force_full, bool hold) {
  fault_ = absl::CancelledError("the round has not ended");
  gate_.SetLimit(hold ? BufferGate::Limit::kPrepare : BufferGate::Limit::kNone);
  DW_RETURN_IF_ERROR(MarkSuspects());
  // An interrupted update must begin again before the pull says what is held: if others had its
  // file open, a fresh file would replace it, without the chunks that the pull has named.
  if (buffer_->updating() || buffer_->interrupted()) {
    DW_RETURN_IF_ERROR(gate_.WaitWritable(*buffer_));
  }
  const bool whole = !buffer_->committed().empty() && !sink_->dirty();
  std::vector<RoundAgent> agents = links_.Plan(target, *buffer_, whole, options_.streams);
  uint64_t delta_bytes = 0;
  PullRound::Env env = RoundEnv();
  const Identity floor = force_full ? Identity{} : Held();
  if (root_mismatches_ >= kMismatchesBeforeFull) force_full = true;
  // What is held for a group's word may never be committed, and a forced pull may bring an older
  // version: neither is for those who follow. Of several agents' parts only the whole is served on,
  // and not before its name is known.
  const bool named = agents_.size() == 1 || target.root_known || target.unwritten();
  if (!force_full && !hold && named) env.forward = serving_.forwarding();
  const auto round = std::make_shared<PullRound>(
      env, std::move(agents),
      PullRound::Wish{.target = target, .force_full = force_full, .hold = hold, .floor = floor});
  {
    MutexLock lock(mu_);
    if (stopping_ || PauseEndsIt()) return absl::CancelledError("paused");
    if (target.unwritten() && (requests_.waiting() || verifies_.waiting())) {
      return absl::CancelledError("somebody asks for something else first");
    }
    for (const AgentLink& agent : agents_) delta_bytes += agent.delta_bytes;
    pull_.Begin(round, target, delta_bytes);
    if (target.unwritten() && agents_.size() > 1 && !buffer_->at_once()) {
      gate_.SetLimit(BufferGate::Limit::kKeepName);
    }
    // What was said since the target was chosen.
    for (const size_t agent : target.awaited) {
      if (follower_.Has(agent, target.parts[agent])) round->Told(agent);
    }
  }
  const auto began = Clock::now();
  SayNewLineage(target.whole);
  LogInfo("model {}: pulling {}, holds {} {}", options_.model, ToString(target.whole),
          ToString(buffer_->committed()), ToString(TraceOf(target.whole)));
  const Status ended = Drive(*round, hold);
  if (hold && ended.ok()) {
    KeepPrepared(round, began, target.incoming);
    return ended;
  }
  gate_.EndLimit();
  return EndRound(*round, began, ended);
}

void Replica::KeepPrepared(const std::shared_ptr<PullRound>& round, Clock::time_point began,
                           bool unasked) {
  LogInfo("model {}: {} is prepared in {} {}", options_.model, ToString(round->whole()),
          HumanSeconds(SecondsSince(began)), ToString(TraceOf(round->whole())));
  fault_ = absl::OkStatus();
  root_mismatches_ = 0;
  serving_.Distrust(buffer_->TakeLost());
  MutexLock lock(mu_);
  pull_.End();
  gate_.EndLimit();
  prepared_ = PreparedRound{round, began};
  member_.Prepared(round->whole(), unasked);
}

Status Replica::Drive(PullRound& round, bool hold) {
  Status ended;
  while (ended.ok() && round.step() != PullRound::Step::kDone && !(hold && round.prepared())) {
    SetPhase(round.step() <= PullRound::Step::kTransfer ? ReceiverPhase::kPulling
                                                        : ReceiverPhase::kApplying);
    TellNews();
    const bool transfers = round.step() == PullRound::Step::kTransfer;
    ended = round.Advance();
    if (transfers && ended.ok()) {
      gate_.EndKeepName();
      LogInfo("model {}: {} has come: {} in {} chunks, in {} {}", options_.model,
              ToString(round.whole()), HumanBytes(round.stats().payload_bytes),
              round.stats().chunks_full + round.stats().chunks_delta,
              HumanSeconds(round.times().transfer), ToString(TraceOf(round.whole())));
    }
    MutexLock lock(mu_);
    if (round.bytes_expected() > 0) pull_.Expect(round.bytes_expected());
  }
  return ended;
}

Status Replica::EndRound(PullRound& round, Clock::time_point began, Status ended) {
  links_.RoundEnded(round, ended.ok());
  fault_ = ended.ok() ? ended : round.fault();
  root_mismatches_ = round.root_mismatch() ? root_mismatches_ + 1 : 0;
  if (ended.ok()) {
    upkeep_.Committed(*buffer_);
    Committed(round, began);
    serving_.Serve(*buffer_, round.delta(), round.delta_from());
  }
  serving_.EndForwarding(ended.ok() ? absl::AbortedError("it cannot be served yet") : ended);
  serving_.Distrust(buffer_->TakeLost());
  MutexLock lock(mu_);
  pull_.End();
  status_.root_mismatches += round.root_mismatch() ? 1 : 0;
  return ended;
}

void Replica::TellStages(const CommitTimes& times) const {
  if (!options_.stages) return;
  options_.stages({Stage::kQueue, times.queue, options_.model});
  options_.stages({Stage::kAhead, times.ahead, options_.model});
  options_.stages({Stage::kTransfer, times.transfer, options_.model});
  options_.stages({Stage::kStage, times.stage, options_.model});
  options_.stages({Stage::kReaders, times.readers, options_.model});
  options_.stages({Stage::kApply, times.apply, options_.model});
  options_.stages({Stage::kCommit, times.commit, options_.model});
}

void Replica::Committed(const PullRound& round, Clock::time_point began) {
  const PullStats& stats = round.stats();
  const Identity id = buffer_->committed();
  CommitTimes times{round.times()};
  MutexLock lock(mu_);
  for (size_t i = 0; i < agents_.size(); ++i) {
    if (IsLater(round.ends()[i], follower_.newest(i))) follower_.Learn(i, round.ends()[i]);
  }
  gate_.Look(*buffer_);
  status_.last_pull = stats;
  status_.bytes_received += stats.payload_bytes;
  status_.repaired_chunks += stats.repaired_chunks;
  status_.refused_chunks += stats.refused_chunks;
  status_.forms += stats.forms;
  status_.history_deltas = history_.deltas();
  status_.history_bytes = history_.bytes();
  // In a directory that was made anew the version that was there before is a new commit.
  const bool same_buffer = std::exchange(committed_in_, buffers_made_) == buffers_made_;
  times.readers = gate_.waits().ended_seconds - waited_before_;
  const auto added = commits_.Add(id, stats, times, began, !same_buffer);
  if (!added) return;
  ++status_.commits;
  lock.unlock();
  commits_.Notify();
  LogInfo("model {}: {} committed: {} in {} ({} chunks whole, {} by delta ({}), {} repaired) {}",
          options_.model, ToString(id), HumanBytes(stats.payload_bytes),
          HumanSeconds(stats.seconds), stats.chunks_full, stats.chunks_delta,
          CodecsText(stats.forms), stats.repaired_chunks, ToString(TraceOf(id)));
  TellStages(*added);
}

void Replica::OnProgress(size_t agent, uint64_t bytes) {
  {
    MutexLock lock(mu_);
    if (!pull_.Progress(agent, bytes, Clock::now())) return;
  }
  SendAll();
  TellNews();
}

}  // namespace deltawire::receiver
