#include "receiver/replica/replica.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>

#include "common/base/call_end.h"
#include "common/base/human.h"
#include "common/base/log.h"
#include "common/base/sync.h"

namespace deltawire::receiver {
namespace {

using Clock = SteadyClock;

std::vector<std::string> Addresses(const std::vector<std::unique_ptr<Upstream>>& upstreams) {
  std::vector<std::string> addresses;
  for (const auto& u : upstreams) addresses.push_back(u->address());
  return addresses;
}

}  // namespace

StatusOr<std::unique_ptr<Replica>> Replica::Start(const ReplicaOptions& options,
                                                  std::vector<std::unique_ptr<Upstream>> upstreams,
                                                  TransportFactory transport, ThreadPool& pool,
                                                  CoderRates& rates) {
  DW_ASSIGN_OR_RETURN(std::unique_ptr<BufferHome> home, BufferHome::Open(options, pool, rates));
  std::unique_ptr<Replica> replica(new Replica(options, std::move(upstreams), std::move(transport),
                                               pool, rates, std::move(home)));
  replica->agents_.Start();
  replica->thread_ = Thread([raw = replica.get()] { raw->Run(); });
  return replica;
}

Replica::Replica(const ReplicaOptions& options, std::vector<std::unique_ptr<Upstream>> upstreams,
                 TransportFactory transport, ThreadPool& pool, CoderRates& rates,
                 std::unique_ptr<BufferHome> home)
    : options_(options),
      gate_({.model = options.model,
             .unsafe_in_place = options.unsafe_in_place,
             .reader_grace = options.reader_grace,
             .copy_for_reader = options.copy_for_reader,
             .downstream = options.downstream},
            [this] { requests_.Notify(); }),
      run_(gate_, options.follow),
      line_(options.model, gate_),
      requests_(commits_),
      home_(std::move(home)),
      planner_(
          Addresses(upstreams), {.follow = options.follow, .seed = options.seed},
          {.home = *home_, .gate = gate_, .run = run_, .requests = requests_, .corrupt = corrupt_}),
      downstream_(options.downstream, options.served_delta_bytes),
      links_(PointersTo(upstreams)),
      upkeep_({.model = options.model,
               .scrub_bytes_per_s = options.scrub_bytes_per_s,
               .serves = options.downstream != nullptr},
              {.gate = gate_,
               .run = run_,
               .line = line_,
               .corrupt = corrupt_,
               .downstream = downstream_}),
      puller_({.options = options_,
               .home = *home_,
               .gate = gate_,
               .commits = commits_,
               .corrupt = corrupt_,
               .downstream = downstream_,
               .links = links_,
               .upkeep = upkeep_,
               .pool = pool,
               .rates = rates,
               .owner = *this},
              std::move(transport)),
      setup_({.options = options_,
              .home = *home_,
              .gate = gate_,
              .run = run_,
              .line = line_,
              .corrupt = corrupt_,
              .downstream = downstream_,
              .links = links_,
              .upkeep = upkeep_,
              .puller = puller_}),
      verifier_(options.model, requests_, corrupt_, pool),
      agents_(std::move(upstreams), {.options = options_,
                                     .gate = gate_,
                                     .run = run_,
                                     .line = line_,
                                     .commits = commits_,
                                     .requests = requests_,
                                     .downstream = downstream_,
                                     .planner = planner_,
                                     .setup = setup_,
                                     .puller = puller_,
                                     .bell = bell_}) {
  if (home_->buffer() == nullptr) return;
  gate_.TakeUp(buffer());
  const Identity committed = buffer().committed();
  corrupt_.SetLayout(home_->facts().fingerprint);
  if (committed.empty()) {
    LogInfo("model {}: taken up in the middle of an update", options_.model);
    return;
  }
  commits_.TakeUp(committed);
  LogInfo("model {}: taken up at {} {}", options_.model, DescribeFully(committed),
          ToString(TraceOf(committed)));
}

Replica::~Replica() {
  Stop();
  Join();
}

void Replica::Stop() {
  run_.Stop();
  bell_.Ring();
  agents_.Stop();
  gate_.Stop();
  commits_.Stop();
  requests_.Stop();
  puller_.Cancel();
}

void Replica::Join() {
  agents_.Join();
  if (thread_.joinable()) thread_.join();
}

void Replica::Run() {
  if (home_->buffer() != nullptr) downstream_.Serve(buffer());
  while (!run_.stopping()) {
    auto again = Clock::time_point::max();
    if (DoNext(&again)) {
      requests_.Notify();  // what was done may be what a caller waits for
    } else {
      bell_.WaitUntil(again);
    }
  }
  agents_.Answer(requests_.Take(), Stopping("receiver"));
}

bool Replica::DoNext(Clock::time_point* again) {
  setup_.CheckDirectory();
  const auto now = Clock::now();
  if (!planner_.attached()) {
    if (!requests_.wants_pull()) return DoUpkeep(now, again) || VerifySome();
    agents_.Answer(requests_.Take(), line_.WhyNoSender());
    return true;
  }
  if (setup_.due()) {
    *again = setup_.due_at();
    if (now < *again && !requests_.wants_pull()) return VerifySome();
    DropPrepared();  // the buffer may be replaced
    const Status described = setup_.Describe();
    if (!described.ok()) agents_.Answer(requests_.Take(), described);
    return true;
  }
  const bool between_pulls = std::exchange(slice_due_, false) && !gate_.committed().empty();
  if (between_pulls && VerifySome()) return true;
  if (requests_.wants_pull()) {
    Pull({});
    return true;
  }
  Planner::Plan plan = planner_.Next(puller_.unwritten_parts(), now);
  if (!plan.attached) return true;
  if (plan.what == GroupMember::Do::kDrop) {
    DropPrepared();
    return true;
  }
  if (plan.what == GroupMember::Do::kCommit) {
    CommitPrepared();
    return true;
  }
  if (plan.lost) {
    DiscardUnwritten();
    return true;
  }
  // What the trainer still writes can wait until the hidden file is where its deltas begin.
  Follower::Choice& choice = plan.choice;
  if (choice.pull && choice.target.unwritten() && upkeep_.MayCatchUp(UpkeepSituation(), now)) {
    RunUpkeep(Upkeep::Task::kCatchUp);
    return true;
  }
  if (choice.pull) {
    Pull(std::move(choice.target), plan.what == GroupMember::Do::kPrepare);
    return true;
  }
  line_.Rest(choice.why, RestingPhase());
  if (agents_.SendReportsIfNews()) return true;
  *again = choice.again;
  return DoUpkeep(now, again) || VerifySome();
}

ReceiverPhase Replica::RestingPhase() const {
  if (run_.paused()) return ReceiverPhase::kPaused;
  if (puller_.prepared()) return ReceiverPhase::kPrepared;
  return planner_.known().newest ? ReceiverPhase::kIdle : ReceiverPhase::kWaitingForVersion;
}

ReplicaStatus Replica::status() const {
  ReplicaStatus s;
  s.lost_attachments = agents_.lost();
  s.scrub_mismatches = corrupt_.counted();
  BufferFacts facts = home_->facts();
  s.model_bytes = facts.model_bytes;
  s.fingerprint = std::move(facts.fingerprint);
  s.buffers = facts.buffers;
  s.buffers_why = std::move(facts.why_buffers);
  s.following = run_.follows();
  s.committed = gate_.committed();
  static_cast<PullTotals&>(s) = puller_.totals();
  static_cast<UpkeepTotals&>(s) = upkeep_.totals();
  const RunningPull pull = puller_.running();
  s.bytes_done = pull.bytes_done();
  s.bytes_total = pull.bytes_expected();
  ReplicaLine::Shown shown = line_.shown();
  s.phase = shown.phase;
  s.message = std::move(shown.message);
  const BufferGate::Waits waits = gate_.waits();
  s.readers = waits.readers;
  s.reader_wait_seconds = waits.seconds;
  s.worst_reader_wait_seconds = waits.worst;
  Planner::Known known = planner_.known();
  s.attached = known.attached;
  s.newest = known.newest.value_or(Identity{});
  s.group = std::move(known.group);
  s.prepared = known.prepared;
  std::vector<BufferSetup::Part> parts = setup_.parts();
  std::vector<AgentAttachments::View> views = agents_.views();
  for (size_t i = 0; i < views.size(); ++i) {
    AgentAttachments::View& view = views[i];
    // A relay that is behind would hide how far behind this receiver is.
    const auto& told = view.sender_newest;
    if (views.size() == 1 && told && IsLater(*told, s.newest)) s.newest = *told;
    s.agents.push_back({.address = std::move(view.address),
                        .newest = known.agents[i].newest,
                        .owned = std::move(parts[i].owned),
                        .owned_bytes = parts[i].owned_bytes,
                        .attached = known.agents[i].attached,
                        .in_use = std::move(view.in_use)});
  }
  return s;
}

StatusOr<uint64_t> Replica::AskSync(bool force_full) {
  if (run_.stopping()) return Stopping("receiver");
  if (!planner_.attached()) return line_.WhyNoSender();
  const uint64_t request = requests_.AddSync(force_full);
  bell_.Ring();
  puller_.CancelUnwritten();
  return request;
}

void Replica::SetPaused(bool paused) {
  const bool ends = run_.SetPaused(paused);
  bell_.Ring();
  if (ends) puller_.Cancel();
}

void Replica::Pull(Follower::Target target, bool hold) {
  const RequestQueue::Batch batch = requests_.Take();
  if (batch.empty() && target.parts.empty()) return;  // the only caller has just gone
  if (!run_.Begin(batch.empty() ? RunState::Use::kFollow : RunState::Use::kRequest)) return;
  DropPrepared();  // a round uses the buffer
  hold = hold && batch.empty();
  gate_.SetLimit(BufferGate::Limit::kNone);
  Status pulled;
  if (!batch.empty()) {
    auto asked = AskNewest(batch.force_full);
    pulled = asked.status();
    if (asked.ok()) target = std::move(*asked);
  }
  if (pulled.ok()) {
    pulled = puller_.Pull(target, {.force_full = batch.force_full, .hold = hold});
  }
  if (puller_.prepared()) planner_.NotePrepared(puller_.prepared_version(), target.incoming);
  const bool paused = absl::IsCancelled(pulled) && run_.state() != RunState::State::kRunning;
  // A version that does not come after all is not the upstream's failure, nor one of this pull.
  // Nor is one that a member cannot make ready: it says so when its group asks for it.
  const bool ended = absl::IsAborted(pulled) || absl::IsCancelled(pulled) || CannotPrepare();
  const bool withdrawn = target.incoming && !paused && !pulled.ok() && ended;
  if (withdrawn) {
    LogInfo("model {}: {} {}", options_.model, MessageOf(pulled), ToString(TraceOf(target.whole)));
  }
  planner_.NotePull(target, {.status = pulled,
                             .hold = hold,
                             .paused = paused,
                             .withdrawn = withdrawn,
                             .refused = absl::IsCancelled(puller_.fault())});
  NoteEnd(withdrawn ? absl::OkStatus() : pulled, target.whole);
  agents_.Answer(batch, pulled);
  AfterPull(pulled.ok() && !hold);
  slice_due_ = true;
}

void Replica::AfterPull(bool committed) {
  OnProgress();
  if (!committed) return;
  home_->LeaveDelta();
  gate_.MakeReady();
}

void Replica::NoteEnd(const Status& pulled, const Identity& target) {
  home_->Look();
  // A pull that a pause ended has not failed.
  const bool paused = absl::IsCancelled(pulled) && run_.state() != RunState::State::kRunning;
  if (!paused) puller_.CountEnd(!pulled.ok());
  if (pulled.ok()) {
    line_.Succeed(RestingPhase());
  } else if (paused) {
    line_.SetPhase(ReceiverPhase::kPaused);
  } else {
    // The upstream asks to pull again: what was pulled is not there any more, or makes way.
    const auto level = absl::IsAborted(pulled) ? LogLevel::kInfo : LogLevel::kWarn;
    line_.Fail(pulled, ReplicaLine::Cause::kOther, TraceOf(target), level);
    // The sender may have another layout or part now, or no longer have the model.
    const bool other = absl::IsFailedPrecondition(pulled) || absl::IsNotFound(pulled);
    if (other && !CannotPrepare()) setup_.Renew();
  }
  run_.End();
}

StatusOr<Follower::Target> Replica::AskNewest(bool or_older) {
  if (planner_.NeedsNewest()) {
    for (size_t i = 0; i < links_.size(); ++i) {
      DW_ASSIGN_OR_RETURN(const Identity newest, links_.Newest(i, options_.model));
      planner_.Learn(i, newest);
    }
  }
  return planner_.SyncTarget(options_.model, or_older);
}

StatusOr<uint64_t> Replica::MayPull(const Follower::Target& target) {
  if (run_.EndsPull()) return absl::CancelledError("paused");
  if (target.unwritten() && (requests_.wants_pull() || requests_.wants_check())) {
    return absl::CancelledError("somebody asks for something else first");
  }
  // Agents may have published their parts since the target was chosen.
  planner_.TellRound(puller_.running());
  return planner_.known().delta_bytes;
}

void Replica::OnPhase(ReceiverPhase phase) {
  if (line_.SetPhase(phase)) OnProgress();
}

void Replica::OnProgress() {
  agents_.SendReports();
  agents_.TellDownstream();
}

void Replica::OnCommit(const std::vector<PullRound::Result>& results) {
  for (size_t i = 0; i < results.size(); ++i) planner_.NotePart(i, results[i].end);
}

void Replica::DiscardUnwritten() {
  run_.Begin(RunState::Use::kUpkeep);
  puller_.DiscardUnwritten();
  run_.End();
}

void Replica::DropPrepared() {
  if (!puller_.prepared()) return;
  puller_.DropPrepared();
  planner_.NoteDiscarded();
}

void Replica::CommitPrepared() {
  const Identity target = puller_.prepared_version();
  if (!run_.Begin(RunState::Use::kFollow)) return;
  const Status ended = puller_.Commit();
  const bool paused = absl::IsCancelled(ended) && run_.state() != RunState::State::kRunning;
  planner_.NoteCommit(ended, paused);
  NoteEnd(ended, target);
  AfterPull(ended.ok());
}

uint64_t Replica::AskCheck(bool repair) {
  const uint64_t request = requests_.AddCheck(repair);
  bell_.Ring();
  // A pull of what the trainer still writes may take long, and is not gone on with meanwhile.
  puller_.CancelUnwritten();
  return request;
}

bool Replica::VerifySome() {
  if (!requests_.wants_check()) return false;
  verifier_.CheckSlice(*home_);
  return true;
}

void Replica::Suspect(const std::string& fingerprint, uint32_t chunk) {
  if (corrupt_.AddOf(fingerprint, chunk)) bell_.Ring();
}

Upkeep::Situation Replica::UpkeepSituation() const {
  return {.committed = !gate_.committed().empty(),
          .paused = run_.paused(),
          .prepared = puller_.prepared(),
          .corrupt = !corrupt_.empty(),
          .verifying = requests_.wants_check()};
}

bool Replica::DoUpkeep(Clock::time_point now, Clock::time_point* again) {
  if (home_->buffer() == nullptr) return false;
  const Upkeep::Choice next = upkeep_.Next(buffer(), UpkeepSituation(), now);
  *again = std::min(*again, next.again);
  if (next.task == Upkeep::Task::kNothing) return false;
  RunUpkeep(next.task);
  return true;
}

void Replica::RunUpkeep(Upkeep::Task task) {
  const bool spare = task == Upkeep::Task::kMakeSpare;
  upkeep_.Run(task, buffer(), home_->sink(), [this, spare] { return IsWanted(spare); });
}

bool Replica::IsWanted(bool incoming) const {
  if (run_.state() != RunState::State::kRunning || requests_.wants_pull() || setup_.due())
    return true;
  if (requests_.wants_check()) return true;
  return planner_.WantsPull(incoming);
}

}  // namespace deltawire::receiver
