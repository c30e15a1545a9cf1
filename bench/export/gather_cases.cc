// gather/: the ranks of a job as two processes on one machine, over loopback Gloo.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>

#include "bench/export/job.h"
#include "bench/export/job_cases.h"
#include "bench/harness/machine.h"
#include "bench/harness/peak_memory.h"
#include "bench/harness/scratch_dir.h"
#include "bench/loopback/tcp_peer.h"
#include "common/shm/buffer_file.h"
#include "sender/export/gather/gloo_collective.h"
#include "sender/export/megatron/megatron_gather.h"

namespace deltawire::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Models of the suite are small; the default of 512 MiB would take in half of one.
constexpr uint64_t kBucketBytes = uint64_t{64} << 20;
constexpr double kMaxExtraMiB = 64;
constexpr std::chrono::minutes kPatience{2};

/// One rank of the two, in its own process.
class GatheringRank {
 public:
  static StatusOr<GatheringRank> Meet(uint32_t rank, const mcore::Plan& plan,
                                      const std::filesystem::path& dir) {
    GatheringRank r(plan);
    DW_ASSIGN_OR_RETURN(r.shards_, Shards::Make(plan, {rank}));
    DW_ASSIGN_OR_RETURN(r.matches_, r.Matches(rank));
    GlooOptions gloo;
    gloo.rank = static_cast<int>(rank);
    gloo.size = 2;
    gloo.rendezvous = "file:" + dir.string();
    gloo.job = "bench";
    gloo.address = "127.0.0.1";
    DW_ASSIGN_OR_RETURN(r.collective_, NewGlooCollective(gloo, Clock::now() + kPatience));
    return r;
  }

  /// `half`: on the root.
  StatusOr<GatherStats> Gather(MutableBytes half, ThreadPool& pool) {
    GatherOptions options;
    options.bucket_bytes = kBucketBytes;
    options.buffers = &buffers_;
    const auto tensor = [&](uint32_t t) {
      return half.subspan(plan_->layout().offset(t), plan_->layout().bytes(t));
    };
    return GatherToHf(
        *collective_, *plan_, matches_, shards_.live(0),
        [this](size_t live) { return shards_.param(0, live); }, tensor, pool, options);
  }

  const Shards& shards() const { return shards_; }

 private:
  explicit GatheringRank(const mcore::Plan& plan) : plan_(&plan) {}

  StatusOr<std::vector<mcore::Match>> Matches(uint32_t rank) const {
    std::vector<mcore::Match> out;
    for (mcore::ShardParam& s : plan_->Rank(rank)) {
      if (!s.writes || s.shape.empty()) continue;
      const mcore::Split split = plan_->planned()[s.planned].cut.split;
      out.push_back({out.size(), std::move(s), split});
    }
    return out;
  }

  const mcore::Plan* plan_;
  Shards shards_;
  std::vector<mcore::Match> matches_;
  std::unique_ptr<Collective> collective_;
  GatherBuffers buffers_;
};

/// Rank 1: its shards hold what follows from their places in the model.
Status BeSecondRank(const mcore::Plan& plan, const std::filesystem::path& dir, size_t times) {
  DW_ASSIGN_OR_RETURN(GatheringRank rank, GatheringRank::Meet(1, plan, dir));
  ThreadPool pool(1);
  {
    DW_ASSIGN_OR_RETURN(HugeBuffer half, HugeBuffer::Create(plan.layout().total_bytes()));
    DW_RETURN_IF_ERROR(rank.shards().FillFrom(plan, half.data(), pool));
  }
  for (size_t i = 0; i < times; ++i) DW_RETURN_IF_ERROR(rank.Gather({}, pool).status());
  return absl::OkStatus();
}

class SecondRank {
 public:
  SecondRank(const mcore::Plan& plan, const std::filesystem::path& dir, size_t times) {
    pid_ = fork();
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const Status status = BeSecondRank(plan, dir, times);
    if (!status.ok()) fmt::print(stderr, "rank 1: {}\n", MessageOf(status));
    _exit(status.ok() ? 0 : 1);
  }
  ~SecondRank() {
    if (pid_ > 0) kill(pid_, SIGKILL);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
  }
  SecondRank(const SecondRank&) = delete;
  SecondRank& operator=(const SecondRank&) = delete;

 private:
  pid_t pid_ = -1;
};

struct Outcome {
  GatherStats stats;
  std::optional<uint64_t> memory;
};

StatusOr<Series> MeasureGather(const JobOptions& options, GatheringRank& root, TcpPeer& peer,
                               MutableBytes half, Outcome* outcome) {
  ThreadPool pool(1);
  const PeakMemory memory;
  DW_ASSIGN_OR_RETURN(
      Series series, Measure(options.rounds, [&](Series& s) -> Status {
        DW_ASSIGN_OR_RETURN(const double tcp, peer.SendAll(half.first(peer.landed().size())));
        s.Add("tcp", tcp);
        const auto start = Clock::now();
        DW_ASSIGN_OR_RETURN(outcome->stats, root.Gather(half, pool));
        s.Add("gather", std::chrono::duration<double>(Clock::now() - start).count());
        return absl::OkStatus();
      }));
  outcome->memory = memory.Beyond();
  return series;
}

void AddRows(const std::string& name, const Series& series, uint64_t half, uint64_t tcp,
             const Outcome& outcome, Report& report) {
  Row row;
  row.name = name;
  row.metric = "throughput";
  row.unit = "GB/s";
  // What travels: the root's own shards are placed meanwhile, and do not count.
  row.value = Rate(series.Of("gather"), static_cast<double>(outcome.stats.network_bytes) / 1e9);
  row.reference = "bare TCP, 1 stream";
  row.reference_value = Rate(series.Of("tcp"), static_cast<double>(tcp) / 1e9);
  report.Add(row);
  row = Row{};
  row.name = name;
  row.metric = "whole model";
  row.unit = "GB/s";
  row.value = Rate(series.Of("gather"), static_cast<double>(half) / 1e9);
  row.note = fmt::format("{} buckets of 64 MiB", outcome.stats.buckets);
  report.Add(row);
  const auto mebibytes = [](uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  row = Row{};
  row.name = name;
  row.metric = "buckets";
  row.unit = "MiB";
  row.value = Summarize({mebibytes(outcome.stats.peak_buffer_bytes)});
  row.wanted.value_at_most = mebibytes(2 * kBucketBytes);
  report.Add(row);
  if (!outcome.memory) return report.NotMeasured(name + " memory", "no peak from the kernel");
  row.metric = "memory";
  row.value = Summarize({mebibytes(*outcome.memory)});
  row.wanted.value_at_most = mebibytes(2 * kBucketBytes) + kMaxExtraMiB;
  report.Add(row);
}

Status GatherCase(const MegatronJob& job, const std::string& name, const JobOptions& options,
                  Report& report) {
  DW_ASSIGN_OR_RETURN(const auto planned, Planned::Make(job));
  const mcore::Plan& plan = planned->plan();
  const uint64_t bytes = plan.layout().total_bytes(), sent = plan.BytesPerRank()[1];
  if (AvailableMemory() < 4 * bytes) {
    report.NotMeasured(name, fmt::format("{} bytes and their shards do not fit here", bytes));
    return absl::OkStatus();
  }
  DW_ASSIGN_OR_RETURN(const auto shm, ScratchDir::Create());
  DW_ASSIGN_OR_RETURN(const auto peer, TcpPeer::Start(shm->path() / "landed", sent, 1));
  const SecondRank second(plan, shm->path(), options.rounds.total());
  DW_ASSIGN_OR_RETURN(BufferFile file, BufferFile::Create(shm->path() / "half", plan.layout(), {}));
  const MutableBytes half = file.data();
  DW_ASSIGN_OR_RETURN(GatheringRank root, GatheringRank::Meet(0, plan, shm->path()));
  {
    ThreadPool pool(1);
    DW_RETURN_IF_ERROR(root.shards().FillFrom(plan, half, pool));
  }
  std::memset(half.data(), 0, half.size());
  Outcome outcome;
  DW_ASSIGN_OR_RETURN(const Series series, MeasureGather(options, root, *peer, half, &outcome));
  AddRows(name, series, bytes, sent, outcome, report);
  if (FilledByPlace(half)) return absl::OkStatus();
  return Errorf(StatusCode::kInternal, "{}: the half does not hold the model's bytes", name);
}

}  // namespace

Status GatherCases(const JobOptions& options, Report& report) {
  for (const MegatronJob& job : GatheredJobs(options.tiny)) {
    const std::string name = fmt::format("gather/{}", job.name);
    if (Asked(options, name)) DW_RETURN_IF_ERROR(GatherCase(job, name, options, report));
  }
  return absl::OkStatus();
}

}  // namespace deltawire::bench
