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

std::vector<Upstream*> Pointers(const std::vector<std::unique_ptr<Upstream>>& upstreams) {
  std::vector<Upstream*> pointers;
  for (const auto& u : upstreams) pointers.push_back(u.get());
  return pointers;
}

std::vector<std::string> Addresses(const std::vector<std::unique_ptr<Upstream>>& upstreams) {
  std::vector<std::string> addresses;
  for (const auto& u : upstreams) addresses.push_back(u->address());
  return addresses;
}

// After so many failed pulls in a row the bytes of the next one are no sign of progress.
constexpr uint32_t kFailuresInProgress = 3;

}  // namespace

StatusOr<std::unique_ptr<Replica>> Replica::Start(const ReplicaOptions& options,
                                                  std::vector<std::unique_ptr<Upstream>> upstreams,
                                                  TransportFactory transport, ThreadPool& pool,
                                                  CoderRates& rates) {
  DW_ASSIGN_OR_RETURN(std::unique_ptr<BufferHome> home, BufferHome::Open(options, pool, rates));
  std::unique_ptr<Replica> replica(new Replica(options, std::move(upstreams), std::move(transport),
                                               pool, rates, std::move(home)));
  replica->keeper_.Start();
  replica->thread_ = Thread([raw = replica.get()] { raw->Run(); });
  return replica;
}

Replica::Replica(const ReplicaOptions& options, std::vector<std::unique_ptr<Upstream>> upstreams,
                 TransportFactory transport, ThreadPool& pool, CoderRates& rates,
                 std::unique_ptr<BufferHome> home)
    : options_(options),
      agents_(upstreams.size()),
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
      planner_(Addresses(upstreams), {.follow = options.follow, .seed = options.seed},
               {.home = *home_,
                .gate = gate_,
                .run = run_,
                .requests = requests_,
                .corrupt = corrupt_}),
      downstream_(options.downstream, options.served_delta_bytes),
      links_(Pointers(upstreams)),
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
      keeper_(options.model, Pointers(upstreams), options.seed, *this) {
  for (size_t i = 0; i < agents_.size(); ++i) agents_[i].upstream = std::move(upstreams[i]);
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
  for (AgentLink& agent : agents_) agent.upstream->Detach();
  // A thread of an upstream may still tell that the attachment has ended: it is joined here, while
  // what it calls lives.
  for (AgentLink& agent : agents_) agent.upstream.reset();
}

void Replica::Stop() {
  run_.Stop();
  {
    MutexLock lock(mu_);
    cv_.notify_all();
  }
  keeper_.Stop();
  gate_.Stop();
  commits_.Stop();
  requests_.Stop();
  puller_.Cancel();
  for (AgentLink& agent : agents_) agent.upstream->Cancel();
}

void Replica::Join() {
  keeper_.Join();
  if (thread_.joinable()) thread_.join();
}

void Replica::Run() {
  if (home_->buffer() != nullptr) downstream_.Serve(buffer());
  MutexLock lock(mu_);
  while (!run_.stopping()) {
    auto again = Clock::time_point::max();
    if (DoNext(&again)) {
      // What was done may be what somebody waits for.
      lock.unlock();
      requests_.Notify();
      lock.lock();
      continue;
    }
    if (again == Clock::time_point::max()) {
      cv_.wait(lock);
    } else {
      cv_.wait_for(lock, std::max<Clock::duration>(again - Clock::now(), Clock::duration(0)));
    }
  }
  Answer(requests_.Take(), Stopping("receiver"));
}

bool Replica::DoNext(Clock::time_point* again) {
  {
    const MutexUnlock unlocked(mu_);  // the file system may be slow
    setup_.CheckDirectory();
  }
  const auto now = Clock::now();
  if (!planner_.attached()) {
    if (!requests_.wants_pull()) return DoUpkeep(now, again) || VerifySome();
    Answer(requests_.Take(), line_.WhyNoSender());
    return true;
  }
  if (setup_.due()) {
    *again = setup_.due_at();
    if (now < *again && !requests_.wants_pull()) return VerifySome();
    DropPrepared();  // the buffer may be replaced
    mu_.unlock();
    const Status described = setup_.Describe();
    mu_.lock();
    if (!described.ok()) Answer(requests_.Take(), described);
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
  Rest(choice.why);
  if (GroupReport answer = planner_.report(); answered_ != answer) {
    answered_ = std::move(answer);
    cv_.notify_all();
    mu_.unlock();
    SendAll();
    mu_.lock();
    return true;
  }
  *again = choice.again;
  return DoUpkeep(now, again) || VerifySome();
}

void Replica::Rest(const std::string& why) {
  if (line_.Rest(why, RestingPhase())) answered_.reset();
}

ReceiverPhase Replica::RestingPhase() const {
  if (run_.paused()) return ReceiverPhase::kPaused;
  if (puller_.prepared()) return ReceiverPhase::kPrepared;
  return planner_.known().newest ? ReceiverPhase::kIdle : ReceiverPhase::kWaitingForVersion;
}

ReplicaStatus Replica::status() const {
  MutexLock lock(mu_);
  ReplicaStatus s = status_;
  s.lost_attachments = keeper_.lost();
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
  for (size_t i = 0; i < agents_.size(); ++i) {
    AgentView view{.address = agents_[i].upstream->address(),
                   .owned = std::move(parts[i].owned),
                   .owned_bytes = parts[i].owned_bytes};
    view.newest = known.agents[i].newest;
    view.attached = known.agents[i].attached;
    view.in_use = agents_[i].upstream->in_use();
    // A relay that is behind would hide how far behind this receiver is.
    const auto told = agents_[i].upstream->sender_newest();
    if (agents_.size() == 1 && told && IsLater(*told, s.newest)) s.newest = *told;
    s.agents.push_back(std::move(view));
  }
  return s;
}

StatusOr<uint64_t> Replica::AskSync(bool force_full) {
  uint64_t request = 0;
  {
    MutexLock lock(mu_);
    if (run_.stopping()) return Stopping("receiver");
    if (!planner_.attached()) {
      return line_.WhyNoSender();
    }
    request = requests_.AddSync(force_full);
    cv_.notify_all();
  }
  puller_.CancelUnwritten();
  return request;
}

void Replica::SetPaused(bool paused) {
  const bool ends = run_.SetPaused(paused);
  {
    MutexLock lock(mu_);
    cv_.notify_all();
  }
  if (ends) puller_.Cancel();
}

void Replica::Pull(Follower::Target target, bool hold) {
  const RequestQueue::Batch batch = requests_.Take();
  if (batch.empty() && target.parts.empty()) return;  // the only caller has just gone
  if (!run_.Begin(batch.empty() ? RunState::Use::kFollow : RunState::Use::kRequest)) return;
  DropPrepared();  // a round uses the buffer
  hold = hold && batch.empty();
  mu_.unlock();
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
  mu_.lock();
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
  Answer(batch, pulled);
  AfterPull(pulled.ok() && !hold);
  slice_due_ = true;
}

void Replica::AfterPull(bool committed) {
  const MutexUnlock unlocked(mu_);
  SendAll();
  TellNews();
  if (!committed) return;
  home_->LeaveDelta();
  gate_.MakeReady();
}

void Replica::NoteEnd(const Status& pulled, const Identity& target) {
  home_->Look();
  // A pull that a pause ended has not failed.
  const bool paused = absl::IsCancelled(pulled) && run_.state() != RunState::State::kRunning;
  failed_in_row_ = pulled.ok() ? 0 : failed_in_row_ + (paused ? 0 : 1);
  if (pulled.ok()) {
    line_.Succeed(RestingPhase());
  } else if (paused) {
    line_.SetPhase(ReceiverPhase::kPaused);
  } else {
    ++status_.pull_failures;
    // The upstream asks to pull again: what was pulled is not there any more, or makes way.
    const auto level = absl::IsAborted(pulled) ? LogLevel::kInfo : LogLevel::kWarn;
    line_.Fail(pulled, ReplicaLine::Cause::kOther, TraceOf(target), level);
    // The sender may have another layout or part now, or no longer have the model.
    const bool other = absl::IsFailedPrecondition(pulled) || absl::IsNotFound(pulled);
    if (other && !CannotPrepare()) setup_.Renew();
  }
  answered_ = planner_.report();
  run_.End();
  cv_.notify_all();
}

void Replica::TellNews() {
  if (!downstream_.serves()) return;
  RelayNews news;
  {
    MutexLock lock(mu_);
    news = upstream_news_;
    const RunningPull pull = puller_.running();
    if (pull.round() != nullptr && failed_in_row_ < kFailuresInProgress) {
      news.fetching = pull.target();
      news.fetched_bytes = pull.bytes_done();
      news.applying = line_.shown().phase == ReceiverPhase::kApplying;
    }
  }
  downstream_.News(news);
}

StatusOr<Follower::Target> Replica::AskNewest(bool or_older) {
  if (planner_.NeedsNewest()) {
    for (size_t i = 0; i < agents_.size(); ++i) {
      DW_ASSIGN_OR_RETURN(const Identity newest, agents_[i].upstream->Newest(options_.model));
      planner_.Learn(i, newest);
    }
  }
  return planner_.SyncTarget(options_.model, or_older);
}

StatusOr<uint64_t> Replica::MayPull(const Follower::Target& target) {
  MutexLock lock(mu_);
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
  SendAll();
  TellNews();
}

void Replica::OnCommit(const std::vector<PullRound::Result>& results) {
  for (size_t i = 0; i < results.size(); ++i) planner_.NotePart(i, results[i].end);
}

void Replica::DiscardUnwritten() {
  run_.Begin(RunState::Use::kUpkeep);
  mu_.unlock();
  puller_.DiscardUnwritten();
  mu_.lock();
  run_.End();
}

void Replica::DropPrepared() {
  if (!puller_.prepared()) return;
  puller_.DropPrepared();
  planner_.NoteDiscarded();
  cv_.notify_all();
}

void Replica::CommitPrepared() {
  const Identity target = puller_.prepared_version();
  if (!run_.Begin(RunState::Use::kFollow)) return;
  mu_.unlock();
  const Status ended = puller_.Commit();
  mu_.lock();
  const bool paused = absl::IsCancelled(ended) && run_.state() != RunState::State::kRunning;
  planner_.NoteCommit(ended, paused);
  NoteEnd(ended, target);
  AfterPull(ended.ok());
}

uint64_t Replica::AskCheck(bool repair) {
  uint64_t request = 0;
  {
    MutexLock lock(mu_);
    request = requests_.AddCheck(repair);
    cv_.notify_all();
  }
  // A pull of what the trainer still writes may take long, and is not gone on with meanwhile.
  puller_.CancelUnwritten();
  return request;
}

bool Replica::VerifySome() {
  if (!requests_.wants_check()) return false;
  const MutexUnlock unlocked(mu_);
  verifier_.CheckSlice(*home_);
  return true;
}

void Replica::Suspect(const std::string& fingerprint, uint32_t chunk) {
  MutexLock lock(mu_);
  if (corrupt_.AddOf(fingerprint, chunk)) cv_.notify_all();
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
  const MutexUnlock unlocked(mu_);
  const bool spare = task == Upkeep::Task::kMakeSpare;
  upkeep_.Run(task, buffer(), home_->sink(), [this, spare] { return IsWanted(spare); });
}

bool Replica::IsWanted(bool incoming) const {
  MutexLock lock(mu_);
  if (run_.state() != RunState::State::kRunning || requests_.wants_pull() || setup_.due()) return true;
  if (requests_.wants_check()) return true;
  return planner_.WantsPull(incoming);
}

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
  ReplicaLine::Shown shown = line_.shown();
  r.phase = shown.phase;
  r.message = std::move(shown.message);
  const RunningPull pull = puller_.running();
  r.bytes_done = pull.bytes_done();
  r.bytes_total = pull.bytes_expected();
  r.last_pull = puller_.totals().last_pull;
  r.group = planner_.report();
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
                    agents_[agent].upstream->address()),
             ReplicaLine::Cause::kConnection);
  cv_.notify_all();
  return false;
}

void Replica::OnEvent(size_t agent, uint64_t attachment, const UpstreamEvent& event) {
  if (!TakeEvent(agent, attachment, event)) return;
  if (event.sync_request != 0 || planner_.Obsoletes(puller_.running())) puller_.CancelUnwritten();
  TellNews();
}

bool Replica::TakeEvent(size_t agent, uint64_t attachment, const UpstreamEvent& event) {
  MutexLock lock(mu_);
  AgentLink& a = agents_[agent];
  if (!keeper_.IsCurrent(agent, attachment)) return false;
  const Planner::Change change = planner_.NoteEvent(agent, event);
  if (change.all_attached) line_.Recover(ReplicaLine::Cause::kConnection);
  if (!a.heard) {
    a.ended.clear();
    LogInfo("model {}: attached to sender {}", options_.model, a.upstream->in_use());
  }
  if (agents_.size() == 1) upstream_news_ = event.relay;
  for (const Identity& version : change.named) commits_.Heard(version, Clock::now());
  const RunningPull pull = puller_.running();
  if (planner_.HasPublished(pull)) puller_.MarkPublished();
  planner_.TellRound(pull);
  if (!event.newest.empty()) setup_.NoteLineage(agent, event.newest.lineage);
  if (event.sync_request != 0) {
    requests_.AddRemote({agent, event.sync_request, event.force_full});
  }
  // A beat that says what the one before said comes every second and changes nothing, except that
  // it brings back an incoming version that the follower had given up.
  if (!a.heard || change.incoming || setup_.due() || !SaysTheSame(*a.heard, event)) cv_.notify_all();
  a.heard = event;
  return true;
}

void Replica::OnEnded(size_t agent, const Status& why) {
  std::shared_ptr<PullRound> waits;  // for a version of which nothing will be told any more
  MutexLock lock(mu_);
  AgentLink& a = agents_[agent];
  if (const RunningPull pull = puller_.running(); pull.awaits_agents()) waits = pull.round();
  a.heard.reset();
  const bool was_attached = planner_.NoteEnded(agent);
  requests_.DropRemote(agent);
  upstream_news_ = {};
  if (run_.stopping()) return;
  NoteEnded(a, was_attached, why);
  cv_.notify_all();
  lock.unlock();
  if (waits != nullptr) waits->Cancel();
}

void Replica::NoteEnded(AgentLink& a, bool was_attached, const Status& why) {
  const std::string& address = a.upstream->address();
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
    return line_.Wait(text, why, ReplicaLine::Cause::kConnection, said(text));
  }
  const std::string text =
      was_attached ? fmt::format("the connection to sender {} ended: {}", address, reason)
                   : fmt::format("cannot attach to sender {}: {}", address, reason);
  // This end cancels the attachment to an upstream that it leaves for another one.
  const auto level = absl::IsCancelled(why) ? LogLevel::kInfo : LogLevel::kWarn;
  if (!said(text)) LogLine(level, "model {}: {}", options_.model, text);
  line_.FailConnection(text);
}

void Replica::SetEngines(const EnginesServe& engines) {
  {
    MutexLock lock(mu_);
    if (run_.stopping() || engines_ == engines) return;
    engines_ = engines;
  }
  SendAll();
}

void Replica::SendAll() {
  for (size_t i = 0; i < agents_.size(); ++i) keeper_.Send(i);
  requests_.Notify();
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
