#include "tests/simulation/trainer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace deltawire::simulation {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Scheduler& Running() { return *Scheduler::current(); }

}  // namespace

/// One try at a version, with processes of its own; a stopped rank keeps it alive.
struct Trainer::Attempt {
  uint64_t version = 0;
  uint64_t token = 0;
  Content content;
  uint64_t client = 0;
  struct Rank {
    bool done = false;
    Status status = absl::UnavailableError("its process died");
    std::shared_ptr<Process> process;
  };
  std::vector<Rank> ranks;
  Random random{0};
};

Trainer::Trainer(Network& network, Ledger& ledger, std::vector<SenderNode*> agents,
                 std::vector<std::vector<ChunkRange>> owned, const Options& options, Random random)
    : network_(network),
      ledger_(ledger),
      agents_(std::move(agents)),
      owned_(std::move(owned)),
      options_(options),
      random_(random) {}

void Trainer::Calm() {
  options_.deaths = options_.stops = options_.resumes = options_.rollbacks = 0;
}

bool Trainer::Register(size_t agent, bool replace) {
  const auto registered = agents_[agent]->Ask<bool>(
      "trainer", seconds(10),
      [meta = ledger_.layout().tensors(), owned = owned_[agent],
       side = std::vector<SideFile>{{kSideFile, std::to_string(side_number_)}},
       replace](sender::Agent& a, const std::function<bool()>&) -> StatusOr<bool> {
        DW_RETURN_IF_ERROR(a.Register(kModel, meta, owned, side, replace).status());
        return true;
      });
  if (!registered.ok()) Running().Note("register: " + std::string(registered.status().message()));
  return registered.ok();
}

void Trainer::Replace(size_t agent) {
  // While somebody else registers the model too, its side files are unknown.
  ++replacing_;
  side_file_.reset();
  (void)Register(agent, true);
  --replacing_;
}

void Trainer::ChangeSideFile() {
  if (random_.Chance(0.2)) {
    ++side_number_;
    side_file_.reset();
  }
  if (side_file_ || replacing_ > 0) return;
  bool all = true;
  for (size_t a = 0; a < agents_.size(); ++a) all = Register(a, false) && all;
  if (all && replacing_ == 0) side_file_ = std::to_string(side_number_);
}

bool Trainer::Step() {
  if (!history_.empty() && random_.Chance(options_.rollbacks)) return RollBack();
  ChangeSideFile();
  Content base = published_;
  if (history_.size() > 1 && random_.Chance(options_.resumes)) {
    // Like a job that resumes from a checkpoint: the same numbers with other bytes.
    const size_t back = random_.Below(std::min<size_t>(history_.size(), 3));
    base = history_[history_.size() - 1 - back].content;
    version_ = history_[history_.size() - 1 - back].version;
  }
  const Content next = base.empty() ? DrawContent(ledger_.layout(), random_)
                                    : Train(ledger_.layout(), base, random_);
  ++version_;
  ledger_.Offer(version_, next);
  if (!Offload(version_, next)) return false;
  published_ = next;
  published_version_ = version_;
  published_side_file_ = side_file_;
  history_.push_back({version_, next, side_file_});
  if (history_.size() > 6) history_.erase(history_.begin());
  ++publishes_;
  return true;
}

bool Trainer::Offload(uint64_t version, const Content& content) {
  const auto attempt = std::make_shared<Attempt>();
  attempt->version = version;
  attempt->token = random_.Next() | 1;
  attempt->content = content;
  attempt->client = ++processes_;
  attempt->random = random_.Fork();
  attempt->ranks.resize(agents_.size() * options_.ranks);
  for (size_t a = 0; a < agents_.size(); ++a) {
    for (uint32_t r = 0; r < options_.ranks; ++r) RunRank(attempt, a, r);
  }
  // Waits only so long for a stopped rank; its process is left as it is.
  const Time limit = Running().now() + seconds(3);
  const auto all = [&](auto is) { return std::ranges::all_of(attempt->ranks, is); };
  while (!all([](const auto& r) { return r.done || !r.process->alive(); })) {
    if (Running().now() >= limit) break;
    Running().Block(attempt.get(), "the ranks",
                    std::min(limit, Running().now() + milliseconds(20)));
  }
  if (all([](const auto& r) { return r.done && r.status.ok(); })) return true;
  for (size_t i = 0; i < attempt->ranks.size(); ++i) {
    const Attempt::Rank& rank = attempt->ranks[i];
    if (Running().trace())
      Running().Note(fmt::format("rank {}: {}", i, std::string(rank.status.message())));
    if (rank.done && absl::IsNotFound(rank.status)) {
      (void)Register(i / options_.ranks, true);
      // The job may begin anew as well: its numbers return with other bytes.
      if (agents_.size() == 1 && random_.Chance(0.7)) version_ = 0;
    }
  }
  return false;
}

void Trainer::RunRank(const std::shared_ptr<Attempt>& attempt, size_t agent, uint32_t rank) {
  const size_t index = agent * options_.ranks + rank;
  const std::string self = fmt::format("rank {}.{} of try {}", agent, rank, processes_);
  auto process = std::make_shared<Process>(self);
  attempt->ranks[index].process = process;
  process->OnDeath([this, self, attempt] {
    network_.NodeDied(self);
    Running().Wake(attempt.get());
  });
  if (random_.Chance(options_.deaths)) process->KillAfter(random_.Between(1, 150));
  Running().Spawn("rank", process, [this, attempt, agent, rank, self, index] {
    const Status status = OffloadRank(*attempt, agent, rank, self);
    attempt->ranks[index].status = status;
    attempt->ranks[index].done = true;
    Running().Wake(attempt.get());
    attempt->ranks[index].process->Kill();
  });
}

Status Trainer::OffloadRank(Attempt& attempt, size_t agent, uint32_t rank,
                            const std::string& self) {
  SenderNode& node = *agents_[agent];
  sender::OffloadRequest request;
  request.version = attempt.version;
  request.rank = rank;
  request.world = options_.ranks;
  request.attempt = attempt.token;
  request.publisher = "a trainer";  // the same for all, since nothing may rely on it
  request.client = attempt.client;
  using Gone = std::function<bool()>;
  DW_ASSIGN_OR_RETURN(
      const sender::OffloadGrant grant,
      node.Ask<sender::OffloadGrant>(
          self, seconds(10),
          [request](sender::Agent& a, const Gone& gone) -> StatusOr<sender::OffloadGrant> {
            DW_ASSIGN_OR_RETURN(const auto model, a.Find(kModel));
            return model->BeginOffload(request, gone);
          }));
  // This call stays open until the rank is ready; by its end the agent learns of the process's
  // death.
  Running().Spawn("attend", Running().fiber()->process, [&node, self, grant, rank] {
    (void)node.Ask<bool>(self, kForever,
                         [grant, rank](sender::Agent& a, const Gone& gone) -> StatusOr<bool> {
                           DW_ASSIGN_OR_RETURN(const auto model, a.Find(kModel));
                           DW_RETURN_IF_ERROR(model->Attend(grant.lease, rank));
                           DW_RETURN_IF_ERROR(model->AwaitReady(grant.lease, rank, gone));
                           return true;
                         });
  });
  DW_RETURN_IF_ERROR(WriteShare(attempt, agent, rank, self, grant));
  sender::ReadyNotice ready;
  ready.version = attempt.version;
  ready.rank = rank;
  ready.world = options_.ranks;
  ready.lease = grant.lease;
  ready.wrote_all = true;
  DW_RETURN_IF_ERROR(node.Ask<bool>(self, seconds(10),
                                    [ready](sender::Agent& a, const Gone&) -> StatusOr<bool> {
                                      DW_ASSIGN_OR_RETURN(const auto model, a.Find(kModel));
                                      return model->NotifyReady(ready);
                                    })
                         .status());
  return node
      .Ask<bool>(
          self, seconds(10),
          [ready](sender::Agent& a, const Gone& gone) -> StatusOr<bool> {
            DW_ASSIGN_OR_RETURN(const auto model, a.Find(kModel));
            DW_RETURN_IF_ERROR(model->WaitPublished(ready.version, ready.lease, gone).status());
            return true;
          })
      .status();
}

void Trainer::Mark(size_t agent, const std::string& self, uint64_t lease,
                   sender::WrittenNotice& notice) {
  if (notice.chunks.empty()) return;
  // A mark that is lost or refused delays a diff and nothing else, so the rank writes on.
  (void)agents_[agent]->Ask<bool>(self, seconds(1),
                                  [lease, notice](sender::Agent& a, const auto&) -> StatusOr<bool> {
                                    DW_ASSIGN_OR_RETURN(const auto model, a.Find(kModel));
                                    DW_RETURN_IF_ERROR(model->MarkWritten(lease, notice));
                                    return true;
                                  });
  notice.chunks.clear();
  notice.chunk_bytes.clear();
}

Status Trainer::WriteShare(Attempt& attempt, size_t agent, uint32_t rank, const std::string& self,
                           const sender::OffloadGrant& grant) {
  const int fd = ::open(grant.half_path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return ErrnoError("open " + grant.half_path.string());
  struct stat file;
  if (::fstat(fd, &file) != 0) return ErrnoError("stat");
  void* base =
      ::mmap(nullptr, static_cast<size_t>(file.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (base == MAP_FAILED) return ErrnoError("map");
  std::byte* data = static_cast<std::byte*>(base) + grant.data_offset;
  const ChunkTable& chunks = ledger_.chunks();
  const Coverage owned = *Coverage::Create(owned_[agent], chunks.size());
  const bool stops = attempt.random.Chance(options_.stops);
  const uint64_t stop_at = attempt.random.Below(chunks.size());
  const bool marks = attempt.random.Chance(options_.marks);
  sender::WrittenNotice notice;
  notice.rank = rank;
  for (uint32_t c = 0; c < chunks.size(); ++c) {
    if (stops && c == stop_at) Running().Sleep(milliseconds(attempt.random.Between(100, 6000)));
    if (!owned.contains(c)) continue;
    // Each rank writes a share of every chunk.
    const uint64_t bytes = chunks[c].bytes;
    const uint64_t first = bytes * rank / options_.ranks;
    const uint64_t last = bytes * (rank + 1) / options_.ranks;
    std::memcpy(data + chunks[c].offset + first, attempt.content.data() + chunks[c].offset + first,
                last - first);
    Running().Point("write");
    if (!marks) continue;
    notice.chunks.push_back(c);
    notice.chunk_bytes.push_back(static_cast<uint32_t>(last - first));
    if (attempt.random.Chance(0.3)) Mark(agent, self, grant.lease, notice);
  }
  if (attempt.random.Chance(0.5)) Mark(agent, self, grant.lease, notice);
  ::munmap(base, static_cast<size_t>(file.st_size));
  return absl::OkStatus();
}

bool Trainer::RollBack() {
  const auto [version, content, side_file] = history_[random_.Below(history_.size())];
  bool all = true;
  for (SenderNode* agent : agents_) {
    const auto done = agent->Ask<bool>(
        "trainer", seconds(10),
        [version = version](sender::Agent& a, const std::function<bool()>&) -> StatusOr<bool> {
          DW_ASSIGN_OR_RETURN(const auto model, a.Find(kModel));
          DW_RETURN_IF_ERROR(model->Rollback(version).status());
          return true;
        });
    if (!done.ok()) Running().Note("rollback: " + std::string(done.status().message()));
    all = all && done.ok();
  }
  if (!all) return false;
  published_ = content;
  published_side_file_ = side_file;
  published_version_ = version_ = version;
  return true;
}

}  // namespace deltawire::simulation
