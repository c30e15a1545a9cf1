#include "tests/simulation/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tests/simulation/planted.h"

namespace deltawire::simulation {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Within this time a rank must hear that another rank of its offload has died.
constexpr auto kHearsWithin = seconds(10);

Scheduler& Running() { return *Scheduler::current(); }

}  // namespace

/// A process of one start of the job. A stopped one outlives the start.
struct Trainer::Rank {
  size_t agent = 0;
  uint32_t number = 0;
  std::shared_ptr<Process> process;
  std::unique_ptr<RankClient> client;
  bool busy = false;           // works on a step
  uint64_t registrations = 0;  // that it has taken part in
};

/// The versions of one step, and how far each rank is with them; a stopped rank keeps it alive.
struct Trainer::Attempt {
  struct Planned {
    uint64_t version = 0;
    uint64_t token = 0;  // 0: the sender draws the attempt
    Content content;
    std::vector<bool> unchanged;  // by tensor
  };
  enum class Place : uint8_t { kNone, kBeforeBegin, kGranted };
  struct State {
    std::shared_ptr<Rank> rank;
    bool done = false;
    Status status = absl::UnavailableError("its process died");
    size_t version = 0;                   // of `versions`, the one that it offloads
    bool granted = false, ready = false;  // of that version
    Place dies = Place::kNone;
    Time died = kForever;
    uint64_t lease = 0;               // under which it was granted
    const Process* sender = nullptr;  // that granted it
  };
  std::shared_ptr<const Layout> layout;
  std::shared_ptr<const ChunkTable> chunks;
  std::string fingerprint;
  std::vector<Coverage> owned;  // by agent
  std::vector<Planned> versions;
  std::vector<State> ranks;
  bool falls = false;  // the job ends with the first of its ranks that dies
  Random random{0};
};

Trainer::Trainer(Network& network, Ledger& ledger, std::vector<SenderNode*> agents,
                 const Options& options, Random random)
    : network_(network),
      ledger_(ledger),
      agents_(std::move(agents)),
      options_(options),
      random_(random),
      has_layout_(agents_.size(), true) {
  DrawShares();
}

void Trainer::DrawShares() {
  const uint32_t chunks = ledger_.chunks().size();
  SetModelChunks(chunks);
  owned_.assign(agents_.size(), {});
  if (agents_.size() == 1) return;
  const auto cut = static_cast<uint32_t>(random_.Between(1, chunks - 1));
  owned_ = {{{0, cut}}, {{cut, chunks}}};
}

Coverage Trainer::owned(size_t agent) const {
  return *Coverage::Create(owned_[agent], ledger_.chunks().size());
}

void Trainer::Calm(bool writes_all) {
  calm_ = true;
  if (writes_all) options_.unchanged = 0;
  options_.deaths = options_.stops = options_.resumes = options_.rollbacks = options_.layouts = 0;
  // First the ranks that wait must hear of those that have died.
  const Time limit = Running().now() + kHearsWithin + seconds(6);
  while (stepping_ && Running().now() < limit) Running().Sleep(milliseconds(10));
  options_.patience = seconds(20);
  options_.hears_deaths = true;
  for (const auto& rank : ranks_) rank->process->Kill();
  while (stepping_) Running().Sleep(milliseconds(10));
}

StatusOr<Identity> Trainer::Register(size_t agent, bool replace) {
  auto registered = agents_[agent]->Ask<Identity>(
      "trainer", seconds(10),
      [meta = ledger_.layout().tensors(), owned = owned_[agent],
       side = std::vector<SideFile>{{kSideFile, std::to_string(side_number_)}},
       replace](sender::Agent& a, const std::function<bool()>&) -> StatusOr<Identity> {
        DW_ASSIGN_OR_RETURN(const auto model, a.Register(kModel, meta, owned, side, replace));
        const auto newest = model->published();
        return newest == nullptr ? Identity{} : newest->info.identity;
      });
  if (!registered.ok()) Running().Note("register: " + std::string(registered.status().message()));
  if (registered.ok()) has_layout_[agent] = true;
  if (registered.ok() && replace) ++registrations_;
  return registered;
}

void Trainer::Replace(size_t agent) {
  // While somebody else registers the model too, its side files are unknown.
  ++replacing_;
  side_file_.reset();
  sure_ = false;
  // The job does not hear of it.
  const uint64_t heard = registrations_;
  (void)Register(agent, true);
  registrations_ = heard;
  --replacing_;
}

void Trainer::ChangeSideFile() {
  if (random_.Chance(0.2)) {
    ++side_number_;
    side_file_.reset();
  }
  if (side_file_ || replacing_ > 0) return;
  bool all = true;
  for (size_t a = 0; a < agents_.size(); ++a) all = Register(a, false).ok() && all;
  if (all && replacing_ == 0) side_file_ = std::to_string(side_number_);
}

bool Trainer::ChangeLayout() {
  if (!history_.empty() && random_.Chance(options_.layouts)) {
    Layout next = DrawLayout(random_);
    // Each of several agents owns a chunk at least.
    if (ChunkTable::Create(next)->size() >= agents_.size()) {
      ledger_.Change(std::move(next));
      DrawShares();
      has_layout_.assign(agents_.size(), false);
      history_.clear();
      published_.clear();
      sure_ = false;
    }
  }
  bool all = true;
  for (size_t a = 0; a < agents_.size(); ++a) {
    if (!has_layout_[a]) all = Register(a, true).ok() && all;
  }
  return all;
}

bool Trainer::Step() {
  stepping_ = true;
  const bool done = [this] {
    if (!history_.empty() && random_.Chance(options_.rollbacks)) return RollBack();
    if (!ChangeLayout()) return false;
    ChangeSideFile();
    const auto attempt = std::make_shared<Attempt>();
    PlanSteps(*attempt);
    if (!Offload(attempt)) {
      AfterFailure(*attempt);
      return false;
    }
    for (const Attempt::Planned& v : attempt->versions) {
      history_.push_back({v.version, v.content, side_file_});
      if (history_.size() > 6) history_.erase(history_.begin());
      ++publishes_;
    }
    published_ = attempt->versions.back().content;
    published_version_ = version_;
    published_side_file_ = side_file_;
    sure_ = true;
    again_ = false;
    return true;
  }();
  stepping_ = false;
  return done;
}

void Trainer::PlanSteps(Attempt& attempt) {
  attempt.layout = std::make_shared<const Layout>(ledger_.layout());
  attempt.chunks = std::make_shared<const ChunkTable>(ledger_.chunks());
  attempt.fingerprint = attempt.layout->fingerprint().Hex();
  for (size_t a = 0; a < agents_.size(); ++a) attempt.owned.push_back(owned(a));
  attempt.falls = random_.Chance(0.5);
  attempt.random = random_.Fork();
  Content base = published_;
  bool carries = sure_ && !base.empty();  // every agent's active half has `base`
  if (history_.size() > 1 && random_.Chance(options_.resumes)) {
    // Like a job that resumes from a checkpoint: the same numbers with other bytes.
    const size_t back = random_.Below(std::min<size_t>(history_.size(), 3));
    base = history_[history_.size() - 1 - back].content;
    version_ = history_[history_.size() - 1 - back].version;
    carries = carries && back == 0;
  } else if (again_ && version_ > 0) {
    --version_;
  }
  again_ = false;
  const uint64_t count = random_.Chance(options_.ahead) ? random_.Between(2, 3) : 1;
  for (uint64_t i = 0; i < count; ++i) {
    Attempt::Planned v;
    v.content = base.empty() ? DrawContent(*attempt.layout, random_)
                             : Train(*attempt.layout, base, random_);
    v.version = ++version_;
    // As production's clients choose it: a lone sender draws it, and knows ranks by their job; for
    // several the ranks have agreed on one.
    v.token = agents_.size() == 1 && random_.Chance(0.8) ? 0 : random_.Next() | 1;
    v.unchanged.resize(attempt.layout->size());
    for (size_t t = 0; carries && t < attempt.layout->size(); ++t) {
      const uint64_t at = attempt.layout->offset(t), bytes = attempt.layout->bytes(t);
      v.unchanged[t] =
          std::memcmp(&base[at], &v.content[at], bytes) == 0 && random_.Chance(options_.unchanged);
    }
    ledger_.Offer(v.version, v.content);
    base = v.content;
    attempt.versions.push_back(std::move(v));
  }
}

void Trainer::StartJob() {
  for (const auto& rank : ranks_) {
    // A stopped rank that nobody reaches is left as it is.
    const bool left = rank->busy && options_.stops > 0 && random_.Chance(0.7);
    if (!left) rank->process->Kill();
  }
  ranks_.clear();
  ++job_;
  for (size_t a = 0; a < agents_.size(); ++a) {
    for (uint32_t r = 0; r < options_.ranks; ++r) {
      const auto rank = std::make_shared<Rank>();
      const std::string self = fmt::format("rank {}.{} of start {}", a, r, job_);
      rank->agent = a;
      rank->number = r;
      rank->process = std::make_shared<Process>(self);
      rank->process->OnDeath([this, self] { network_.NodeDied(self, options_.hears_deaths); });
      rank->client =
          std::make_unique<RankClient>(network_, *agents_[a],
                                       RankClient::Settings{.name = self,
                                                            .job = fmt::format("start {}", job_),
                                                            .rank = r,
                                                            .world = options_.ranks,
                                                            .client = ++clients_,
                                                            .timeout = options_.timeout});
      ranks_.push_back(rank);
    }
  }
}

bool Trainer::Offload(const std::shared_ptr<Attempt>& attempt) {
  const bool whole = !ranks_.empty() && std::ranges::all_of(ranks_, [](const auto& rank) {
    return rank->process->alive() && !rank->busy;
  });
  if (!whole || random_.Chance(options_.deaths)) StartJob();
  attempt->ranks.resize(ranks_.size());
  for (size_t i = 0; i < ranks_.size(); ++i) RunRank(attempt, i);
  const Time limit = Running().now() + options_.patience;
  const auto all = [&](auto is) { return std::ranges::all_of(attempt->ranks, is); };
  while (!all([](const auto& r) { return r.done || !r.rank->process->alive(); })) {
    const bool fallen = attempt->falls && !std::ranges::all_of(attempt->ranks, [](const auto& r) {
                          return r.rank->process->alive();
                        });
    if (Running().now() >= limit || fallen) break;
    CheckHears(*attempt);
    Running().Block(attempt.get(), "the ranks",
                    std::min(limit, Running().now() + milliseconds(20)));
  }
  return all([](const auto& r) { return r.done && r.status.ok(); });
}

void Trainer::CheckHears(Attempt& attempt) {
  for (const Attempt::State& dead : attempt.ranks) {
    if (!options_.hears_deaths || dead.died == kForever || !dead.granted || dead.ready) continue;
    if (Running().now() - dead.died < kHearsWithin) continue;
    for (const Attempt::State& other : attempt.ranks) {
      const bool waits = !other.done && other.rank->process->alive() && other.ready &&
                         other.lease == dead.lease && other.sender == dead.sender &&
                         other.rank->agent == dead.rank->agent;
      if (!waits || agents_[other.rank->agent]->process.get() != other.sender) continue;
      Running().Fail(fmt::format("{} has not heard for 10 s that {} died",
                                 other.rank->process->name(), dead.rank->process->name()));
    }
  }
}

void Trainer::AfterFailure(const Attempt& attempt) {
  sure_ = false;
  bool begins_again = false;
  for (const Attempt::State& state : attempt.ranks) {
    if (Running().trace()) {
      Running().Note(
          fmt::format("{}: {}", state.rank->process->name(), std::string(state.status.message())));
    }
    if (!state.done || state.status.ok()) continue;
    const size_t agent = state.rank->agent;
    if (absl::IsNotFound(state.status)) {
      (void)Register(agent, true);
      // The job may begin anew as well: its numbers return with other bytes.
      begins_again = begins_again || (agents_.size() == 1 && random_.Chance(0.7));
    } else if (absl::IsFailedPrecondition(state.status)) {
      // A sender may have gone back to an older layout, or have a newer version than is known here.
      const auto published = Register(agent, false);
      if (!published.ok()) has_layout_[agent] = !absl::IsFailedPrecondition(published.status());
      if (published.ok() && random_.Chance(0.5)) {
        version_ = std::max(version_, published->id.version);
      }
    }
  }
  if (begins_again) version_ = 0;
  // Mostly a job ends with its first rank, and its next start takes up the same step.
  if (attempt.falls || random_.Chance(0.5)) {
    StartJob();
    again_ = !calm_ && attempt.versions.size() == 1 && version_ == attempt.versions[0].version &&
             random_.Chance(0.7);
  }
}

void Trainer::RunRank(const std::shared_ptr<Attempt>& attempt, size_t index) {
  Attempt::State& state = attempt->ranks[index];
  state.rank = ranks_[index];
  const auto process = state.rank->process;
  if (!process->alive()) return;
  state.rank->busy = true;
  process->OnDeath([attempt, index] {
    Attempt::State& mine = attempt->ranks[index];
    if (!mine.done) mine.died = Running().now();
    Running().Wake(attempt.get());
  });
  if (random_.Chance(options_.deaths)) {
    const uint64_t where = random_.Below(4);
    if (where == 0) state.dies = Attempt::Place::kBeforeBegin;
    if (where == 1) state.dies = Attempt::Place::kGranted;
    if (where > 1) process->KillAfter(random_.Between(1, 200));
  }
  Running().Spawn("rank", process, [this, attempt, index] {
    Attempt::State& mine = attempt->ranks[index];
    const Status status = RunVersions(*attempt, index);
    mine.status = status;
    mine.done = true;
    mine.rank->busy = false;
    Running().Wake(attempt.get());
  });
}

Status Trainer::RunVersions(Attempt& attempt, size_t index) {
  Attempt::State& mine = attempt.ranks[index];
  RankClient& client = *mine.rank->client;
  if (mine.rank->registrations != registrations_) client.ShowUse();
  mine.rank->registrations = registrations_;
  std::vector<uint64_t> unwaited;
  const auto wait = [&]() -> Status {
    for (const uint64_t version : unwaited) {
      DW_RETURN_IF_ERROR(client.WaitPublished(version).status());
    }
    unwaited.clear();
    return {};
  };
  for (size_t n = 0; n < attempt.versions.size(); ++n) {
    mine.version = n;
    mine.granted = mine.ready = false;
    // Ranks are not in step.
    if (attempt.random.Chance(0.5)) Running().Sleep(milliseconds(attempt.random.Between(0, 60)));
    if (mine.dies == Attempt::Place::kBeforeBegin) mine.rank->process->Kill();
    DW_RETURN_IF_ERROR(OffloadVersion(attempt, index, n));
    unwaited.push_back(attempt.versions[n].version);
    if (attempt.random.Chance(0.4)) DW_RETURN_IF_ERROR(wait());
  }
  return wait();
}

Status Trainer::OffloadVersion(Attempt& attempt, size_t index, size_t n) {
  Attempt::State& mine = attempt.ranks[index];
  const Attempt::Planned& planned = attempt.versions[n];
  RankClient& client = *mine.rank->client;
  DW_ASSIGN_OR_RETURN(
      const RankClient::Offload offload,
      client.Begin(planned.version, planned.token, attempt.fingerprint, [&](uint64_t lease) {
        mine.granted = true;
        mine.lease = lease;
        mine.sender = agents_[mine.rank->agent]->process.get();
        if (mine.dies == Attempt::Place::kGranted) mine.rank->process->Kill();
      }));
  std::vector<uint32_t> written, unchanged;
  for (uint32_t t = 0; t < planned.unchanged.size(); ++t) {
    (planned.unchanged[t] ? unchanged : written).push_back(t);
  }
  Status status = WriteShare(attempt, index, n, offload);
  if (status.ok()) status = client.Ready(offload, written, unchanged);
  if (!status.ok()) {
    client.Abandon(offload, "its offload failed");
    return status;
  }
  mine.ready = true;
  return status;
}

void Trainer::Mark(RankClient& client, const RankClient::Offload& offload,
                   sender::WrittenNotice& notice) {
  if (!notice.chunks.empty()) client.MarkWritten(offload, notice);
  notice.chunks.clear();
  notice.chunk_bytes.clear();
}

Status Trainer::WriteShare(Attempt& attempt, size_t index, size_t n,
                           const RankClient::Offload& offload) {
  Attempt::State& mine = attempt.ranks[index];
  const Attempt::Planned& planned = attempt.versions[n];
  const ChunkTable& chunks = *attempt.chunks;
  const Coverage& owned = attempt.owned[mine.rank->agent];
  const bool stops = attempt.random.Chance(options_.stops);
  const uint64_t stop_at = attempt.random.Below(chunks.size());
  const bool marks = attempt.random.Chance(options_.marks);
  sender::WrittenNotice notice;
  notice.rank = mine.rank->number;
  for (uint32_t c = 0; c < chunks.size(); ++c) {
    if (attempt.random.Chance(0.2)) DW_RETURN_IF_ERROR(offload.Check());
    if (stops && c == stop_at) Running().Sleep(milliseconds(attempt.random.Between(100, 6000)));
    if (!owned.contains(c) || planned.unchanged[chunks[c].tensor]) continue;
    // Each rank writes a share of every chunk.
    const uint64_t bytes = chunks[c].bytes;
    const uint64_t first = bytes * mine.rank->number / options_.ranks;
    const uint64_t last = bytes * (mine.rank->number + 1) / options_.ranks;
    std::memcpy(offload.data + chunks[c].offset + first,
                planned.content.data() + chunks[c].offset + first, last - first);
    Running().Point("write");
    if (!marks) continue;
    notice.chunks.push_back(c);
    notice.chunk_bytes.push_back(static_cast<uint32_t>(last - first));
    if (attempt.random.Chance(0.3)) Mark(*mine.rank->client, offload, notice);
  }
  if (attempt.random.Chance(0.5)) Mark(*mine.rank->client, offload, notice);
  return absl::OkStatus();
}

bool Trainer::RollBack() {
  const auto [version, content, side_file] = history_[random_.Below(history_.size())];
  bool all = true;
  for (SenderNode* agent : agents_) {
    const auto done = agent->Ask<bool>(
        "trainer", seconds(10),
        [version = version](sender::Agent& a, const std::function<bool()>&) -> StatusOr<bool> {
          DW_ASSIGN_OR_RETURN(const auto model, a.models().Find(kModel));
          DW_RETURN_IF_ERROR(model->publisher().RollBack(version).status());
          return true;
        });
    if (!done.ok()) Running().Note("rollback: " + std::string(done.status().message()));
    all = all && done.ok();
  }
  // Another start of the job may have published other bytes under that number since.
  sure_ = false;
  if (!all) return false;
  published_ = content;
  published_side_file_ = side_file;
  published_version_ = version_ = version;
  return true;
}

}  // namespace deltawire::simulation
