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
      pulls_({.pull = {.options = options_,
                       .home = *home_,
                       .gate = gate_,
                       .commits = commits_,
                       .corrupt = corrupt_,
                       .downstream = downstream_,
                       .links = links_,
                       .upkeep = upkeep_,
                       .pool = pool,
                       .rates = rates},
              .run = run_,
              .line = line_,
              .requests = requests_,
              .planner = planner_,
              .setup = setup_,
              .agents = agents_},
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
              .puller = pulls_.puller()}),
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
                                     .puller = pulls_.puller(),
                                     .bell = bell_}) {
  if (home_->buffer() == nullptr) return;
  gate_.version().TakeUp(buffer());
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
  pulls_.puller().Cancel();
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
  const Planner::Plan plan = planner_.Next(pulls_.puller().unwritten_parts(), now);
  const Upkeep::Situation situation = UpkeepSituation();
  const Upkeep::Choice upkeep =
      home_->buffer() == nullptr ? Upkeep::Choice() : upkeep_.Next(buffer(), situation, now);
  const DueState due{.attached = plan.attached,
                     .wants_pull = requests_.wants_pull(),
                     .wants_check = requests_.wants_check(),
                     .slice_due = slice_due_ && situation.committed,
                     .describe = setup_.due(),
                     .describe_now = now >= setup_.due_at(),
                     .group = plan.what,
                     .lost = plan.lost,
                     .pull = plan.choice.pull,
                     .unwritten = plan.choice.target.unwritten(),
                     .may_catch_up = upkeep_.MayCatchUp(situation, now),
                     .upkeep = upkeep.task};
  const Step step = NextStep(due);
  slice_due_ = step == Step::kPull || step == Step::kPullForCallers;
  if (IsAtRest(due)) {
    line_.Rest(plan.choice.why, pulls_.RestingPhase());
    if (agents_.SendReportsIfNews()) return true;
  }
  *again =
      due.attached && due.describe ? setup_.due_at() : std::min(plan.choice.again, upkeep.again);
  Take(step, plan, upkeep.task);
  return step != Step::kRest;
}

void Replica::Take(Step step, const Planner::Plan& plan, Upkeep::Task task) {
  switch (step) {
    case Step::kRest:
      return;
    case Step::kRefuseCallers:
      return agents_.Answer(requests_.Take(), line_.WhyNoSender());
    case Step::kDescribe:
      pulls_.DiscardPrepared();  // the buffer may be replaced
      if (const Status described = setup_.Describe(); !described.ok()) {
        agents_.Answer(requests_.Take(), described);
      }
      return;
    case Step::kCheckSlice:
      return verifier_.CheckSlice(*home_);
    case Step::kPullForCallers:
      return pulls_.PullForCallers();
    case Step::kDiscardPrepared:
      return pulls_.DiscardPrepared();
    case Step::kCommitPrepared:
      return pulls_.CommitPrepared();
    case Step::kDiscardUnwritten:
      return pulls_.DiscardUnwritten();
    case Step::kPull:
      return pulls_.Pull(plan.choice.target, plan.what == GroupMember::Do::kPrepare);
    case Step::kUpkeep:
      return RunUpkeep(task);
    case Step::kCatchUp:
      return RunUpkeep(Upkeep::Task::kCatchUp);
  }
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
  s.committed = gate_.version().committed();
  static_cast<PullTotals&>(s) = pulls_.puller().totals();
  static_cast<UpkeepTotals&>(s) = upkeep_.totals();
  const RunningPull pull = pulls_.puller().running();
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
  pulls_.puller().running().CancelUnwritten();
  return request;
}

void Replica::SetPaused(bool paused) {
  const bool ends = run_.SetPaused(paused);
  bell_.Ring();
  if (ends) pulls_.puller().Cancel();
}

uint64_t Replica::AskCheck(bool repair) {
  const uint64_t request = requests_.AddCheck(repair);
  bell_.Ring();
  // A pull of an unwritten version may take long, and would hold up the check.
  pulls_.puller().running().CancelUnwritten();
  return request;
}

void Replica::ReportCorrupt(const std::string& fingerprint, uint32_t chunk) {
  if (corrupt_.AddOf(fingerprint, chunk)) bell_.Ring();
}

Upkeep::Situation Replica::UpkeepSituation() const {
  return {.committed = !gate_.version().committed().empty(),
          .paused = run_.paused(),
          .prepared = pulls_.puller().prepared(),
          .corrupt = !corrupt_.empty(),
          .verifying = requests_.wants_check()};
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
