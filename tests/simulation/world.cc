#include "tests/simulation/world.h"

#include <fmt/format.h>

#include <algorithm>

#include "tests/simulation/decided.h"
#include "tests/simulation/planted.h"
#include "tests/simulation/published.h"

namespace deltawire::simulation {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Under a trainer that never rests, a commit may take two transfers of the whole model, and this
/// much for the rest: lost events, and the grace of readers.
constexpr auto kPaceSlack = seconds(5);

double Seconds(Time t) { return std::chrono::duration<double>(t).count(); }

Network::Options DrawNetwork(Random& random) {
  Network::Options o;
  if (random.Chance(0.3)) o.longest = milliseconds(20);
  o.bytes_per_s = random.Chance(0.3) ? 5e4 : 5e6;
  if (random.Chance(0.3)) o.flips = 0.01;
  if (random.Chance(0.3)) o.silent_deaths = 0.5;
  return o;
}

}  // namespace

World::World(const HistoryOptions& options, Random random)
    : options_(options),
      random_(random),
      scheduler_(*Scheduler::current()),
      network_(DrawNetwork(random_), random_.Fork()),
      ledger_(DrawLayout(random_)),
      production_(random_.Chance(0.5)) {
  receivers_drawn_ = random_.Chance(0.7) ? 1 : 2;
  DrawSenders();
  DrawReceivers();
}

World::~World() = default;

void World::DrawSenders() {
  const uint32_t chunks = ledger_.chunks().size();
  const bool several = random_.Chance(0.35) || options_.agents;
  const size_t agents = chunks >= 2 && several && !options_.groups ? 2 : 1;
  std::vector<SenderNode*> nodes;
  for (size_t a = 0; a < agents; ++a) {
    const std::string name = fmt::format("sender{}", a);
    const std::filesystem::path dir = std::filesystem::path(options_.directory) / name;
    std::filesystem::create_directories(dir);
    SenderOptions o;
    o.data_dir = dir.string();
    o.codec = random_.Chance(0.7) ? kernels::Codec::kFast : kernels::Codec::kTight;
    o.history = static_cast<uint32_t>(random_.Below(5));
    o.scrub_bytes_per_s = random_.Chance(0.3) ? 20'000 : 0;
    o.grace = milliseconds(random_.Between(1, 100));
    o.offload_timeout = milliseconds(random_.Between(500, 3000));
    o.stream_timeout = seconds(3);
    if (production_) {
      const SenderOptions defaults;
      o.grace = defaults.grace;
      o.offload_timeout = defaults.offload_timeout;
      o.stream_timeout = defaults.stream_timeout;
    }
    o.delta_log_bytes = random_.Chance(0.3) ? 2000 : 1 << 20;
    short_logs_ = short_logs_ || o.delta_log_bytes == 2000;
    o.huge_pages = false;
    if (agents == 1) DrawGroup(o);
    senders_.push_back(std::make_unique<SenderNode>(network_, name, dir, o));
    nodes.push_back(senders_.back().get());
  }
  Trainer::Options t;
  t.ranks = static_cast<uint32_t>(random_.Between(1, 2));
  t.deaths = random_.Chance(0.4) ? 0.1 : 0;
  t.stops = random_.Chance(0.3) && options_.zombies ? 0.1 : 0;
  t.resumes = random_.Chance(0.4) ? 0.2 : 0;
  t.rollbacks = random_.Chance(0.4) ? 0.15 : 0;
  t.ahead = random_.Chance(0.3) ? 0.3 : 0;
  t.unchanged = random_.Chance(0.5) ? 0.5 : 0;
  t.layouts = random_.Chance(0.2) ? 0.05 : 0;
  t.hears_deaths = random_.Chance(0.7);
  if (production_) {
    t.timeout = seconds(30);
    t.patience = seconds(15);
  }
  trainer_ = std::make_unique<Trainer>(network_, ledger_, nodes, t, random_.Fork());
}

void World::DrawGroup(SenderOptions& o) {
  const bool planted = options_.groups || options_.plant == Plant::kEarlyCommit ||
                       options_.plant == Plant::kForgetDecision;
  if (options_.relays || (!planted && !random_.Chance(0.35))) return;
  grouped_ = true;
  GroupOptions group{.model = "", .name = "g", .members = {}};
  for (size_t i = 0; i < receivers_drawn_; ++i)
    group.members.push_back(fmt::format("receiver{}", i));
  o.groups = {std::move(group)};
  o.group_commits = true;
  o.group_timeout = milliseconds(random_.Between(300, 4000));
  if (production_) o.group_timeout = SenderOptions().group_timeout;
  o.group_skip_absent = random_.Chance(0.3);
}

std::vector<HostNode*> World::DrawUpstreams(size_t i, ReceiverSettings& s) {
  std::vector<HostNode*> upstreams;
  if (relays_) {
    s.serves = i + 1 < receivers_drawn_;
    // Whoever follows several agents follows all of them and no relay.
    s.alternatives = i > 0 || senders_.size() == 1;
    if (i > 0) upstreams.push_back(receivers_[random_.Below(i)].get());
    if (i > 0 && (senders_.size() > 1 || random_.Chance(0.5))) return upstreams;
  }
  for (const auto& sender : senders_) upstreams.push_back(sender.get());
  return upstreams;
}

void World::DrawReceivers() {
  relays_ = !grouped_ && (random_.Chance(0.3) || options_.relays);
  if (relays_) receivers_drawn_ = random_.Between(2, 3);
  for (size_t i = 0; i < receivers_drawn_; ++i) {
    ReceiverSettings s;
    s.agents = senders_.size();
    s.member = grouped_;
    s.buffers = static_cast<uint32_t>(random_.Between(1, 2));
    s.copies_for_readers = random_.Chance(0.5);
    // Beside its only file a member could not make every version ready.
    if (grouped_ && s.buffers == 1) s.copies_for_readers = true;
    s.streams = static_cast<uint32_t>(random_.Between(1, 3));
    s.staging_bytes = random_.Chance(0.2) ? 300 : 1 << 20;
    s.history_bytes = random_.Chance(0.5) ? 1 << 20 : 0;
    s.scrub_bytes_per_s = random_.Chance(0.2) ? 20'000 : 0;
    s.exchange = !random_.Chance(0.2);
    s.engines =
        s.buffers == 2 && random_.Chance(0.3) ? static_cast<uint32_t>(random_.Between(1, 3)) : 0;
    if (production_) {
      const receiver::ReplicaOptions defaults;
      s.stream_timeout = defaults.stream_timeout;
      s.reader_grace = defaults.reader_grace;
    }
    s.leases = !random_.Chance(0.05);
    s.upstream.lost_events = random_.Chance(0.2) ? 0.05 : 0;
    s.upstream.drop_attempts = options_.plant == Plant::kDropAttempt;
    s.upstream.numbers_only = options_.plant == Plant::kNumbersOnly;
    std::vector<HostNode*> upstreams = DrawUpstreams(i, s);
    const std::string name = fmt::format("receiver{}", i);
    const std::filesystem::path dir = std::filesystem::path(options_.directory) / name;
    std::filesystem::create_directories(dir);
    receivers_.push_back(std::make_unique<ReceiverNode>(network_, ledger_, std::move(upstreams),
                                                        name, dir, s, random_.Fork()));
    // An engine's wait is checked, so nobody else may be in the way.
    const size_t readers = options_.readers && s.engines == 0 ? random_.Below(3) : 0;
    for (size_t r = 0; r < readers; ++r) {
      readers_.push_back(std::make_unique<Reader>(*receivers_.back(), ledger_, random_.Fork(), r));
    }
  }
}

void World::Observe(const char* what) {
  // A check is slow, so it runs at every 16th point, and at each call that changes a name or a
  // lease.
  const std::string_view at = what;
  const bool file_call = at.starts_with("rename") || at.starts_with("link") || at == "lease";
  if (!file_call && ++observed_ % 16 != 0) return;
  for (const auto& receiver : receivers_) {
    const std::string wrong = receiver->Check();
    if (!wrong.empty()) return scheduler_.Fail(wrong);
  }
}

void World::Run() {
  scheduler_.SetObserver([this](const char* what) { Observe(what); });
  kills_ = random_.Chance(0.6) ? 0.1 : 0;
  replaces_ = random_.Chance(0.2) ? 0.03 : 0;
  rots_ = random_.Chance(0.2) ? 0.1 : 0;
  receivers_rot_ = random_.Chance(0.2) ? 0.02 : 0;
  reboots_ = random_.Chance(0.2) || options_.plant == Plant::kKeepName ? 0.5 : 0;
  full_ = random_.Chance(0.25) ? 0.1 : 0;
  for (const auto& sender : senders_) sender->Start();
  for (const auto& receiver : receivers_) receiver->Start();
  for (const auto& reader : readers_) reader->Start();
  scheduler_.Spawn("trainer", scheduler_.fiber()->process, [this] {
    while (!calm_) {
      trainer_->Step();
      scheduler_.Sleep(milliseconds(random_.Between(1, 200)));
    }
  });
  Trouble();
  Calm();
  SwitchOff();
}

void World::Trouble() {
  const Time end = scheduler_.now() + seconds(random_.Between(2, 8));
  while (scheduler_.now() < end) {
    scheduler_.Sleep(milliseconds(random_.Between(1, 200)));
    SenderNode& sender = *senders_[random_.Below(senders_.size())];
    if (!sender.alive()) {
      if (random_.Chance(0.25)) sender.Wipe();
      if (random_.Chance(reboots_)) sender.Reboot(sender.directory(), random_);
      if (random_.Chance(0.5)) sender.Start();
    } else if (random_.Chance(kills_)) {
      switch (random_.Below(3)) {
        case 0:
          sender.process->Kill();
          break;
        case 1:
          sender.process->KillAfter(random_.Between(1, 2000));
          break;
        default:
          sender.Stop();
      }
    }
    if (random_.Chance(replaces_)) trainer_->Replace(random_.Below(senders_.size()));
    if (random_.Chance(rots_)) Rot(sender);
    if (random_.Chance(full_)) TroubleFiles();
    for (const auto& receiver : receivers_) TroubleReceiver(*receiver);
    for (const auto& reader : readers_) TroubleReader(*reader);
    if (random_.Chance(0.02)) network_.BreakSome(0.3);
    if (random_.Chance(0.02)) {
      network_.Partition(sender.name, receivers_[random_.Below(receivers_.size())]->name);
    }
    if (relays_ && random_.Chance(0.02)) {
      network_.Partition(receivers_[0]->name, receivers_.back()->name);
    }
    if (random_.Chance(0.05)) network_.Heal();
  }
}

void World::TroubleReceiver(ReceiverNode& receiver) {
  if (random_.Chance(0.02)) {
    CheckKept(receiver);
    receiver.Keep();
  }
  if (!receiver.alive()) {
    if (random_.Chance(0.1)) receiver.Wipe();
    if (random_.Chance(reboots_)) receiver.Reboot();
    if (random_.Chance(0.5)) receiver.Start();
    return;
  }
  if (random_.Chance(receivers_rot_)) receiver.Rot();
  if (random_.Chance(0.03)) receiver.SetPaused(random_.Chance(0.5));
  if (random_.Chance(0.02)) receiver.Sync(random_.Chance(0.5));
  if (random_.Chance(0.02)) receiver.Verify(random_.Chance(0.5));
  if (random_.Chance(0.002)) receiver.DenyLeases();
  if (!random_.Chance(kills_)) return;
  switch (random_.Below(4)) {
    case 0:
      return receiver.process->Kill();
    case 1:
      return receiver.Stop();
    default:
      return receiver.process->KillAfter(random_.Between(1, 3000));
  }
}

void World::Rot(SenderNode& sender) {
  if (!sender.alive()) return;
  (void)sender.Ask<bool>("operator", seconds(1),
                         [at = random_.Next(), bit = random_.Below(8)](
                             sender::Agent& agent, const std::function<bool()>&) -> StatusOr<bool> {
                           DW_ASSIGN_OR_RETURN(const auto model, agent.models().Find(kModel));
                           const auto state = model->published();
                           if (state == nullptr) return false;
                           const Bytes half = model->half(state->half);
                           const_cast<std::byte&>(half[at % half.size()]) ^= std::byte{1} << bit;
                           return true;
                         });
}

void World::TroubleFiles() {
  const auto set = [this](HostNode& node) {
    if (node.alive() && random_.Chance(0.5)) {
      node.process->SetFileFaults(random_.Chance(0.5) ? random_.Share() : 0);
    }
  };
  for (const auto& sender : senders_) set(*sender);
  for (const auto& receiver : receivers_) set(*receiver);
}

void World::TroubleReader(Reader& reader) {
  if (!reader.alive()) return reader.Start();
  if (random_.Chance(0.05)) reader.process().Kill();
}

Time World::bound() const { return production_ ? seconds(75) : seconds(30); }

void World::Calm() {
  calm_ = true;
  network_.Heal();
  network_.SetFlips(0);
  for (const auto& sender : senders_) {
    if (!sender->alive()) continue;
    sender->process->KillAfter(0);
    sender->process->SetFileFaults(0);
  }
  for (const auto& receiver : receivers_) {
    if (!receiver->alive()) continue;
    receiver->process->KillAfter(0);
    receiver->process->SetFileFaults(0);
  }
  trainer_->Calm(/*writes_all=*/rots_ > 0);
  network_.Heal();               // of ranks that died unheard meanwhile
  scheduler_.Sleep(seconds(4));  // stopping processes have ended by then
  for (const auto& sender : senders_) {
    if (!sender->alive()) sender->Start();
  }
  for (const auto& receiver : receivers_) {
    if (!receiver->alive()) receiver->Start();
  }
  const Time limit = scheduler_.now() + bound();
  while (!trainer_->Step()) {
    if (scheduler_.now() > limit) {
      return scheduler_.Fail("nothing can be published after the faults have ended:\n" +
                             scheduler_.Describe());
    }
    scheduler_.Sleep(milliseconds(100));
  }
  CheckPublished();
  AwaitReceivers();
  if (scheduler_.failed() || !random_.Chance(0.03)) return;
  // The pulls from several agents have one version as target, which every log must hold until all
  // pulls are open.
  if (senders_.size() > 1 && short_logs_) return;
  // A group waits for the last of its members, and does not try what failed at once.
  if (grouped_) return;
  // Behind relays a version takes as many transfers as there are hops, when it is overtaken.
  if (relays_) return;
  KeepPace();
  while (!scheduler_.failed() && !trainer_->Step()) scheduler_.Sleep(milliseconds(100));
  AwaitReceivers();
}

void World::KeepPace() {
  const double whole_s =
      static_cast<double>(ledger_.layout().total_bytes()) / network_.bytes_per_s();
  const Time grace = receivers_[0]->settings().reader_grace;
  const Time bound = 2 * Time(static_cast<int64_t>(whole_s * 1e9)) + kPaceSlack + grace;
  const Time end = scheduler_.now() + 2 * bound;
  for (const auto& receiver : receivers_) receiver->TimeCommits();
  while (scheduler_.now() < end) {
    trainer_->Step();
    for (const auto& receiver : receivers_) {
      const ReceiverSettings& settings = receiver->settings();
      // A reader may block the update for ever.
      if (settings.buffers == 1 && !settings.copies_for_readers) continue;
      const Time gap = receiver->longest_gap();
      if (gap <= bound) continue;
      return scheduler_.Fail(
          fmt::format("{} has committed nothing for {:.3f} s; its bound is {:.3f}", receiver->name,
                      Seconds(gap), Seconds(bound)));
    }
  }
}

void World::CheckKept(const ReceiverNode& receiver) {
  const std::string wrong = receiver.CheckKept();
  if (!wrong.empty()) scheduler_.Fail(wrong);
}

void World::AwaitReceivers() {
  // A paused member keeps its whole group where it is.
  for (const auto& receiver : receivers_) receiver->SetPaused(false);
  const Time limit = scheduler_.now() + bound();
  for (const auto& receiver : receivers_) {
    CheckKept(*receiver);
    while (true) {
      const auto named = receiver->Named();
      const auto& side_file = trainer_->published_side_file();
      const bool side_right = !side_file || receiver->SideFile() == *side_file;
      if (named && *named == trainer_->published() && side_right) break;
      // An operator looks at memory that rotted.
      if (receiver->rotten() && receiver->alive() && random_.Chance(0.05)) receiver->Verify(true);
      if (scheduler_.now() > limit) {
        std::string phase = "it is not running";
        if (receiver->replica() != nullptr) {
          const receiver::ReplicaStatus status = receiver->replica()->status();
          phase = fmt::format("{}, {}", ToString(status.phase), status.message);
        }
        return scheduler_.Fail(
            fmt::format("{} (buffers {}) has not come to version {} after the faults have ended: "
                        "{}\n{}{}{}",
                        receiver->name, receiver->settings().buffers, trainer_->published_version(),
                        phase, named ? ledger_.Explain(*named) : "  no file has the name\n",
                        side_right ? ""
                                   : fmt::format("  its side file is \"{}\", published is \"{}\"\n",
                                                 receiver->SideFile(), *side_file),
                        GroupText() + scheduler_.Describe()));
      }
      scheduler_.Sleep(milliseconds(50));
    }
  }
}

std::string World::GroupText() const {
  std::string text;
  for (const auto& sender : senders_) {
    if (sender->agent() == nullptr) continue;
    for (const sender::GroupView& g : sender->agent()->groups().views(kModel)) {
      const sender::GroupStatus& s = g.status;
      text += fmt::format("  group {}: {} {}, decided {}, last {}: {}\n", g.name, ToString(s.phase),
                          ToString(s.target), ToString(s.decision.state),
                          s.last.committed ? "committed" : "aborted", s.last.message);
      for (const auto& m : g.members) {
        text += fmt::format("    {}: {} {}\n", m.id, ToString(m.state), m.message);
      }
    }
  }
  return text;
}

void World::CheckPublished() {
  for (size_t a = 0; a < senders_.size(); ++a) {
    const auto model = senders_[a]->agent()->models().Find(kModel);
    if (!model.ok()) return scheduler_.Fail("the model has gone");
    const auto state = (*model)->published();
    const Bytes half = (*model)->half(state->half);
    const Coverage owned = trainer_->owned(a);
    for (uint32_t c = 0; c < ledger_.chunks().size(); ++c) {
      if (!owned.contains(c)) continue;
      const Chunk& chunk = ledger_.chunks()[c];
      if (!std::ranges::equal(half.subspan(chunk.offset, chunk.bytes),
                              Bytes(trainer_->published()).subspan(chunk.offset, chunk.bytes))) {
        return scheduler_.Fail(
            fmt::format("sender {} published chunk {} with other bytes than were written", a, c));
      }
    }
  }
}

void World::SwitchOff() {
  for (const auto& sender : senders_) {
    if (sender->agent() != nullptr)
      result_.early += sender->agent()->desk().CountsOf(kModel).bytes_ahead;
    if (sender->alive()) sender->process->Kill();
  }
  for (const auto& receiver : receivers_) {
    result_.commits += receiver->changes();
    result_.ahead += receiver->ahead();
    if (receiver->alive()) receiver->process->Kill();
  }
  for (const auto& reader : readers_) {
    result_.passes += reader->passes();
    if (reader->alive()) reader->process().Kill();
  }
  result_.publishes = trainer_->publishes();
  result_.rounds = DecidedCount();
}

HistoryResult RunHistory(const HistoryOptions& options) {
  std::error_code ignored;
  std::filesystem::remove_all(options.directory, ignored);
  std::filesystem::create_directories(options.directory);
  Random random(options.seed * 0x9e3779b97f4a7c15 + 1);
  Scheduler::Options schedule;
  schedule.seed = random.Next();
  const double pace[] = {0.01, 0.1, 0.5};
  schedule.switches = pace[random.Below(3)];
  schedule.spurious = random.Chance(0.3) ? 0.01 : 0;
  schedule.trace = options.trace;
  SetPlanted(options.plant);
  ForgetPublished();
  ForgetDecided();
  HistoryResult result;
  Scheduler scheduler(schedule);
  // Never destroyed, since objects of killed processes point into it.
  World* world = nullptr;
  result.failure = scheduler.Run(std::make_shared<Process>("world"), [&] {
    world = new World(options, random.Fork());
    world->Run();
  });
  if (world != nullptr) {
    const std::string failure = result.failure;
    result = world->result();
    result.failure = failure;
  }
  result.hash = scheduler.trace_hash();
  result.steps = scheduler.steps();
  result.virtual_seconds = Seconds(scheduler.now());
  std::filesystem::remove_all(options.directory, ignored);
  return result;
}

}  // namespace deltawire::simulation
