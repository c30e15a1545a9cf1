#include "receiver/replica/puller.h"

#include <utility>

#include "common/base/human.h"
#include "common/base/log.h"
#include "common/base/trace.h"

namespace deltawire::receiver {
namespace {

// After so many root mismatches in a row every chunk is fetched: a sender that leaves a chunk out
// of its delta may do so every time.
constexpr int kMismatchesBeforeFull = 2;

// "5 fast, 3 tight, 0 dense".
std::string CodecsText(const FormCounts& forms) {
  std::string text;
  for (size_t i = FormCounts::kRaw + 1; i < kernels::kForms; ++i) {
    text +=
        fmt::format("{}{} {}", text.empty() ? "" : ", ", forms.chunks[i], kernels::kFormNames[i]);
  }
  return text;
}

void ObserveStages(const ReplicaOptions& options, const CommitTimes& times) {
  if (!options.stages) return;
  options.stages({Stage::kQueue, times.queue, options.model});
  options.stages({Stage::kAhead, times.ahead, options.model});
  options.stages({Stage::kTransfer, times.transfer, options.model});
  options.stages({Stage::kStage, times.stage, options.model});
  options.stages({Stage::kReaders, times.readers, options.model});
  options.stages({Stage::kApply, times.apply, options.model});
  options.stages({Stage::kCommit, times.commit, options.model});
}

}  // namespace

Status Puller::Pull(const Follower::Target& target, const Wish& wish) {
  waited_before_ = env_.gate.waits().ended_seconds;
  DiscardUnwritten(target.whole);
  Status pulled;
  while (true) {
    pulled = RunRound(target, wish);
    // A reader kept the pull from changing the buffer, so a chunk that came whole was lost. The
    // next round waits for the reader.
    if (pulled.ok() || env_.gate.refusal() != BufferGate::Refusal::kReader) break;
    pulled = env_.gate.WaitWritable(buffer());
    if (!pulled.ok()) break;
  }
  if (pulled.ok()) unwritten_ = {};
  if (!pulled.ok() && target.unwritten()) unwritten_ = target;
  env_.links.NotePullEnd(fault_);
  return pulled;
}

Status Puller::RunRound(const Follower::Target& target, const Wish& wish) {
  fault_ = absl::CancelledError("the round has not ended");
  env_.gate.SetLimit(wish.hold ? BufferGate::Limit::kPrepare : BufferGate::Limit::kNone);
  DW_RETURN_IF_ERROR(WithdrawCorrupt());
  // An interrupted update must begin again before the pull names the held chunks: if a reader has
  // the file open, a fresh file replaces it, without those chunks.
  if (buffer().updating() || buffer().update().interrupted()) {
    DW_RETURN_IF_ERROR(env_.gate.WaitWritable(buffer()));
  }
  const std::shared_ptr<PullRound> round = MakeRound(target, wish);
  {
    MutexLock lock(mu_);
    pull_.Begin(round, target);
    if (target.unwritten() && env_.links.size() > 1 && !buffer().at_once()) {
      env_.gate.SetLimit(BufferGate::Limit::kKeepName);
    }
  }
  if (const auto expected = owner_.MayPull(target); expected.ok()) {
    MutexLock lock(mu_);
    pull_.Expect(*expected);
  } else {
    MutexLock lock(mu_);
    pull_.End();
    env_.gate.EndLimit();
    return expected.status();
  }
  const auto began = SteadyClock::now();
  LogNewLineage(target.whole);
  LogInfo("model {}: pulling {}, holds {} {}", env_.options.model, ToString(target.whole),
          ToString(buffer().committed()), ToString(TraceOf(target.whole)));
  const Status ended = Drive(*round, wish.hold);
  if (wish.hold && ended.ok()) {
    KeepPrepared(round, began);
    return ended;
  }
  env_.gate.EndLimit();
  return EndRound(*round, began, ended);
}

std::shared_ptr<PullRound> Puller::MakeRound(const Follower::Target& target, const Wish& wish) {
  const bool whole = !buffer().committed().empty() && !env_.home.sink()->dirty();
  std::vector<RoundAgent> agents = env_.links.Plan(target, buffer(), whole, env_.options.streams);
  // A prepared version may never be committed, and a forced pull may bring an older one, so neither
  // is forwarded. A version of several agents is forwarded once its identity is known.
  const bool full = wish.force_full || root_mismatches_ >= kMismatchesBeforeFull;
  const bool named = agents.size() == 1 || target.root_known || target.unwritten();
  const PullRound::Env env{
      .model = env_.options.model,
      .buffer = buffer(),
      .gate = env_.gate,
      .sink = *env_.home.sink(),
      .history = history_,
      .side_files = side_files_,
      .pool = env_.pool,
      .rates = env_.rates,
      .transport = transport_,
      .stream_timeout = env_.options.stream_timeout,
      .sockets = env_.options.sockets,
      .connect_ahead = env_.options.connect_ahead,
      .allow_code_files = env_.options.allow_code_files,
      .progress = [this](size_t agent, uint64_t bytes) { OnProgress(agent, bytes); },
      .forward = !full && !wish.hold && named ? env_.downstream.forwarding() : nullptr};
  return std::make_shared<PullRound>(
      env, std::move(agents),
      PullRound::Wish{.target = target,
                      .force_full = full,
                      .hold = wish.hold,
                      .floor = wish.force_full ? Identity{} : buffer().last_whole()});
}

Status Puller::WithdrawCorrupt() {
  if (env_.corrupt.empty()) return absl::OkStatus();
  DW_RETURN_IF_ERROR(env_.gate.BeginChange());
  const std::vector<uint32_t> chunks = env_.corrupt.Take();
  Status withdrawn = buffer().bases().Withdraw(chunks);
  // After an error, or if the chunks prove intact, the version keeps its name.
  if (buffer().updating()) {
    env_.gate.EndChangeWithoutName();
  } else {
    env_.gate.EndChange(buffer());
  }
  if (!withdrawn.ok()) {
    env_.corrupt.Merge(chunks);
    return withdrawn;
  }
  {
    MutexLock lock(mu_);
    totals_.repaired_chunks += chunks.size();
  }
  env_.downstream.RecheckChunks(chunks);
  return absl::OkStatus();
}

Status Puller::Drive(PullRound& round, bool hold) {
  Status ended;
  while (ended.ok() && round.step() != PullRound::Step::kDone && !(hold && round.prepared())) {
    owner_.OnPhase(round.step() <= PullRound::Step::kTransfer ? ReceiverPhase::kPulling
                                                              : ReceiverPhase::kApplying);
    const bool transfers = round.step() == PullRound::Step::kTransfer;
    ended = round.Advance();
    if (transfers && ended.ok()) {
      env_.gate.EndKeepName();
      LogInfo("model {}: {} has come: {} in {} chunks, in {} {}", env_.options.model,
              ToString(round.whole()), HumanBytes(round.stats().payload_bytes),
              round.stats().chunks_full + round.stats().chunks_delta,
              HumanSeconds(round.times().transfer), ToString(TraceOf(round.whole())));
    }
    MutexLock lock(mu_);
    if (round.bytes_expected() > 0) pull_.Expect(round.bytes_expected());
  }
  return ended;
}

void Puller::KeepPrepared(const std::shared_ptr<PullRound>& round, SteadyClock::time_point began) {
  LogInfo("model {}: {} is prepared in {} {}", env_.options.model, ToString(round->whole()),
          HumanSeconds(SecondsSince(began)), ToString(TraceOf(round->whole())));
  fault_ = absl::OkStatus();
  root_mismatches_ = 0;
  env_.downstream.RecheckChunks(buffer().bases().TakeCorrupt());
  prepared_ = Prepared{round, began};
  env_.gate.EndLimit();
  MutexLock lock(mu_);
  pull_.End();
}

Status Puller::Commit() {
  Prepared prepared = *std::exchange(prepared_, std::nullopt);
  const Identity whole = prepared.round->whole();
  env_.gate.SetLimit(BufferGate::Limit::kNone);
  {
    MutexLock lock(mu_);
    pull_.BeginCommit(prepared.round, whole);
  }
  Status ended = owner_.MayPull(Follower::ExactTarget(whole)).status();
  if (ended.ok()) ended = Drive(*prepared.round, /*hold=*/false);
  ended = EndRound(*prepared.round, prepared.began, ended);
  // The commit may have pulled for corrupt chunks.
  env_.links.NotePullEnd(fault_);
  // A fresh file may have replaced the one that had the chunks.
  const bool complete =
      prepared.round->step() == PullRound::Step::kCommit && buffer().bases().DigestsOf(whole).ok();
  if (complete && absl::IsResourceExhausted(ended)) prepared_ = std::move(prepared);
  return ended;
}

void Puller::DiscardPrepared() {
  if (!prepared_) return;
  const Identity whole = prepared_version();
  LogInfo("model {}: {} was prepared, and is not committed {}", env_.options.model, ToString(whole),
          ToString(TraceOf(whole)));
  prepared_.reset();
}

Status Puller::EndRound(PullRound& round, SteadyClock::time_point began, Status ended) {
  env_.links.NoteRoundEnd(round, ended.ok());
  fault_ = ended.ok() ? ended : round.fault();
  root_mismatches_ = round.root_mismatch() ? root_mismatches_ + 1 : 0;
  if (ended.ok()) {
    env_.upkeep.NoteCommit(buffer());
    NoteCommit(round, began);
    // A forwarded version of an older lineage would look like the one after the committed version.
    if (!(running().target().lineage == buffer().committed().lineage)) {
      env_.downstream.EndForwarding(
          absl::AbortedError("a version of another lineage was committed"));
    }
    env_.downstream.Serve(buffer(), round.delta(), round.delta_from());
  }
  env_.downstream.EndForwarding(ended.ok() ? absl::AbortedError("it cannot be served yet") : ended);
  env_.downstream.RecheckChunks(buffer().bases().TakeCorrupt());
  MutexLock lock(mu_);
  pull_.End();
  totals_.root_mismatches += round.root_mismatch() ? 1 : 0;
  return ended;
}

void Puller::NoteCommit(const PullRound& round, SteadyClock::time_point began) {
  const PullStats& stats = round.stats();
  const Identity id = buffer().committed();
  owner_.OnCommit(round.results());
  // In a directory that was made again, the version that was there before is a new commit.
  const uint64_t number = env_.home.number();
  const bool same_buffer = std::exchange(committed_in_, number) == number;
  CommitTimes times{round.times()};
  times.readers = env_.gate.waits().ended_seconds - waited_before_;
  std::optional<CommitTimes> added;
  {
    MutexLock lock(mu_);
    env_.gate.version().NoteBuffer(buffer());
    totals_.last_pull = stats;
    totals_.bytes_received += stats.payload_bytes;
    totals_.repaired_chunks += stats.repaired_chunks;
    totals_.refused_chunks += stats.refused_chunks;
    totals_.forms += stats.forms;
    totals_.history_deltas = history_.deltas();
    totals_.history_bytes = history_.bytes();
    added = env_.commits.Add(id, stats, times, began, !same_buffer);
    totals_.commits += added ? 1 : 0;
  }
  if (!added) return;
  env_.commits.Notify();
  LogInfo("model {}: {} committed: {} in {} ({} chunks whole, {} by delta ({}), {} repaired) {}",
          env_.options.model, ToString(id), HumanBytes(stats.payload_bytes),
          HumanSeconds(stats.seconds), stats.chunks_full, stats.chunks_delta,
          CodecsText(stats.forms), stats.repaired_chunks, ToString(TraceOf(id)));
  ObserveStages(env_.options, *added);
}

void Puller::OnProgress(size_t agent, uint64_t bytes) {
  {
    MutexLock lock(mu_);
    if (!pull_.NoteProgress(agent, bytes, SteadyClock::now())) return;
  }
  owner_.OnProgress();
}

void Puller::LogNewLineage(const Identity& target) {
  const Identity held = buffer().last_whole();
  const Hash128 before = std::exchange(lineage_, target.lineage);
  if (held.empty() || target.lineage == Hash128{}) return;
  if (held.lineage == target.lineage || before == target.lineage) return;
  LogInfo("model {}: the sender has begun a new lineage, {}; leaving {} for {}", env_.options.model,
          target.lineage.Hex().substr(0, 8), DescribeFully(held), ToString(target));
}

void Puller::DiscardUnwritten(const Identity& next) {
  const Identity& whole = unwritten_.whole;
  if (whole.empty() || IsOf(whole, next)) return;
  LogInfo("model {}: discarding the chunks of {}, which is not published {}", env_.options.model,
          ToString(whole), ToString(TraceOf(whole)));
  unwritten_ = {};
  env_.home.sink()->Discard();
  buffer().update().Discard();
  env_.upkeep.NoteBuffer(buffer());
}

void Puller::ForgetBuffer() {
  unwritten_ = {};
  history_.Forget();
  env_.links.ForgetHeld();
}

RunningPull Puller::running() const {
  MutexLock lock(mu_);
  return pull_;
}

void Puller::MarkPublished() {
  MutexLock lock(mu_);
  if (pull_.state() != RunningPull::State::kUnwritten) return;
  pull_.MarkPublished();
  env_.gate.EndKeepName();
}

void Puller::Cancel() {
  if (const auto round = running().round(); round != nullptr) round->Cancel();
}

void Puller::CountEnd(bool failed) {
  MutexLock lock(mu_);
  totals_.pull_failures += failed ? 1 : 0;
  totals_.failures_in_row = failed ? totals_.failures_in_row + 1 : 0;
}

PullTotals Puller::totals() const {
  MutexLock lock(mu_);
  return totals_;
}

}  // namespace deltawire::receiver
