// The cases plan/, place/MODEL and gather/: a job's plan, its ranks' copies without a network, and
// two ranks as two processes on one machine, over loopback Gloo.
#include <cstring>
#include <numeric>

#include "bench/export/cases.h"
#include "bench/export/job.h"
#include "bench/harness/machine.h"
#include "bench/harness/parallel.h"
#include "bench/loopback/tcp_peer.h"
#include "common/base/machine.h"
#include "common/shm/buffer_file.h"
#include "sender/export/gather/gloo_collective.h"
#include "sender/export/megatron/megatron_gather.h"
#include "tests/support/forked.h"

namespace deltawire::bench {
namespace {

using mcore::Direction;

constexpr double kMaxExtraMiB = 64;
// The suite's models are small: a bucket of the default 512 MiB would hold half of one.
constexpr uint64_t kBucketBytes = uint64_t{64} << 20;
constexpr double kBucketsMiB = 2 * kBucketBytes / kMiB;
constexpr std::chrono::minutes kPatience{2};

// Each of these measures one job. `thread_counts` is for copies, where it is compared.

Status PlanCase(const MegatronJob& job, const std::string& name, const std::vector<size_t>&,
                Bench& bench) {
  std::unique_ptr<Planned> planned;
  size_t steps = 0;
  const PeakMemory memory;
  DW_ASSIGN_OR_RETURN(const Series series, bench.Measure([&](Series& s) -> Status {
    planned.reset();
    DW_ASSIGN_OR_RETURN(planned, s.Time("plan", [&] { return Planned::Make(job); }));
    return s.Time("rank", [&]() -> Status {
      steps = 0;
      for (const mcore::Match& m : WrittenBy(planned->plan(), 0)) {
        DW_ASSIGN_OR_RETURN(const auto made, StepsOf(planned->plan(), m.shard, m.shard.dtype,
                                                     m.split, Direction::kToHf));
        steps += made.size();
      }
      return absl::OkStatus();
    });
  }));
  const auto peak = memory.Beyond();
  const mcore::Plan& plan = planned->plan();
  bench.Add(name, 1, series,
            {Value("plan and proof", "plan")
                 .Note(fmt::format("{} tensors, {} parameters, {} copies on rank 0",
                                   plan.layout().size(), plan.planned().size(), steps)),
             Value("one rank", "rank").Note(fmt::format("of {}", plan.parallel().world()))});
  bench.AddMemory(name, peak, 0, "at its peak");
  return absl::OkStatus();
}

/// Returns whether `times` the model's bytes fit into this machine; otherwise adds a row that says
/// so.
bool Fits(const mcore::Plan& plan, uint64_t times, const std::string& name, Bench& bench) {
  const uint64_t bytes = plan.layout().total_bytes();
  if (AvailableMemory().value_or(0) >= times * bytes) return true;
  bench.NotMeasured(name, fmt::format("{} times {} bytes do not fit here", times, bytes));
  return false;
}

Status CheckFilled(const std::string& name, Bytes half) {
  if (FilledByPlace(half)) return absl::OkStatus();
  return Errorf(StatusCode::kInternal, "{}: the half does not hold the model's bytes", name);
}

/// Describes the pages of the half, which is the only shared memory of this process.
const char* HalfPages() {
  return ProcBytes("/proc/self/smaps_rollup", "ShmemPmdMapped:") > 0 ? "half in huge pages"
                                                                     : "half in 4 KiB pages";
}

Status PlaceCase(const MegatronJob& job, const std::string& name,
                 const std::vector<size_t>& thread_counts, Bench& bench) {
  DW_ASSIGN_OR_RETURN(const auto planned, Planned::Make(job));
  const mcore::Plan& plan = planned->plan();
  if (!Fits(plan, 3, name, bench)) return absl::OkStatus();
  std::vector<uint32_t> ranks(plan.parallel().world());
  std::iota(ranks.begin(), ranks.end(), 0);
  DW_ASSIGN_OR_RETURN(const Shards shards, Shards::Make(plan, ranks));
  // The half is made like the sender's.
  DW_ASSIGN_OR_RETURN(const auto shm, ScratchDir::Create());
  DW_ASSIGN_OR_RETURN(BufferFile file, BufferFile::Create(shm->path() / "half", plan.layout(), {}));
  const MutableBytes half = file.data();
  DW_RETURN_IF_ERROR(shards.FillFrom(half));
  const char* const pages = HalfPages();
  const PeakMemory memory;
  DW_ASSIGN_OR_RETURN(const auto programs, shards.Programs(Direction::kToHf));
  const Bytes from = shards.data().first(std::min<size_t>(shards.data().size(), half.size()));
  for (const size_t threads : thread_counts) {
    ThreadPool pool(threads);
    const auto round = [&](Series& s) -> Status {
      DW_RETURN_IF_ERROR(s.Time("memcpy", [&] { CopyInParts(from, half, pool); }));
      return s.Time("place", [&] { shards.Run(programs, Direction::kToHf, half, pool); });
    };
    const Figure placed =
        Throughput("place", half.size()).Against("memcpy").AgainstBytes(from.size()).AtLeast(0.75);
    DW_RETURN_IF_ERROR(bench.Run(name, threads, {placed}, round));
  }
  bench.AddMemory(name, memory.Beyond(), kMaxExtraMiB, pages);
  return CheckFilled(name, half);
}

struct GatheringRank {
  const mcore::Plan& plan;
  Shards shards;
  std::unique_ptr<Collective> collective;
  GatherBuffers buffers = {};

  static StatusOr<GatheringRank> Meet(uint32_t rank, const mcore::Plan& plan,
                                      const std::filesystem::path& dir) {
    DW_ASSIGN_OR_RETURN(Shards shards, Shards::Make(plan, {rank}));
    GlooOptions gloo;
    gloo.rank = static_cast<int>(rank);
    gloo.size = 2;
    gloo.rendezvous = "file:" + dir.string();
    gloo.job = "bench";
    gloo.address = "127.0.0.1";
    DW_ASSIGN_OR_RETURN(auto collective,
                        NewGlooCollective(gloo, std::chrono::steady_clock::now() + kPatience));
    return GatheringRank{plan, std::move(shards), std::move(collective)};
  }

  /// `half` is the destination on the root, and empty on the other rank.
  StatusOr<GatherStats> Gather(MutableBytes half) {
    ThreadPool pool(1);
    const auto tensor = [&](uint32_t t) {
      return half.subspan(plan.layout().offset(t), plan.layout().bytes(t));
    };
    const Shards::Rank& mine = shards.rank(0);
    return GatherToHf(*collective, plan, mine.matches, mine.live,
                      [&](size_t live) { return Bytes(mine.data[live]); }, tensor, pool,
                      {.bucket_bytes = kBucketBytes, .buffers = &buffers});
  }
};

/// Runs rank 1, whose shards hold numbers that follow from their places in the model.
Status BeSecondRank(const mcore::Plan& plan, const std::filesystem::path& dir, size_t times) {
  DW_ASSIGN_OR_RETURN(GatheringRank rank, GatheringRank::Meet(1, plan, dir));
  {
    DW_ASSIGN_OR_RETURN(HugeBuffer half, HugeBuffer::Create(plan.layout().total_bytes()));
    DW_RETURN_IF_ERROR(rank.shards.FillFrom(half.data()));
  }
  for (size_t i = 0; i < times; ++i) DW_RETURN_IF_ERROR(rank.Gather({}).status());
  return absl::OkStatus();
}

Status GatherCase(const MegatronJob& job, const std::string& name, const std::vector<size_t>&,
                  Bench& bench) {
  DW_ASSIGN_OR_RETURN(const auto planned, Planned::Make(job));
  const mcore::Plan& plan = planned->plan();
  if (!Fits(plan, 4, name, bench)) return absl::OkStatus();
  const uint64_t bytes = plan.layout().total_bytes(), sent = plan.BytesPerRank()[1];
  DW_ASSIGN_OR_RETURN(const auto shm, ScratchDir::Create());
  DW_ASSIGN_OR_RETURN(const auto peer, TcpPeer::Start(shm->path() / "landed", sent, 1));
  const testing::Forked second([&] {
    const Status status = BeSecondRank(plan, shm->path(), bench.rounds.total());
    if (!status.ok()) fmt::print(stderr, "rank 1: {}\n", MessageOf(status));
  });
  DW_ASSIGN_OR_RETURN(BufferFile file, BufferFile::Create(shm->path() / "half", plan.layout(), {}));
  const MutableBytes half = file.data();
  DW_ASSIGN_OR_RETURN(GatheringRank root, GatheringRank::Meet(0, plan, shm->path()));
  DW_RETURN_IF_ERROR(root.shards.FillFrom(half));
  std::memset(half.data(), 0, half.size());
  GatherStats stats;
  const PeakMemory memory;
  DW_ASSIGN_OR_RETURN(const Series series, bench.Measure([&](Series& s) -> Status {
    DW_ASSIGN_OR_RETURN(const double tcp, peer->SendAll(half.first(sent)));
    s.Add("tcp", tcp);
    DW_ASSIGN_OR_RETURN(stats, s.Time("gather", [&] { return root.Gather(half); }));
    return absl::OkStatus();
  }));
  const auto peak = memory.Beyond();
  bench.Add(name, 1, series,
            // Only the network's bytes count. Meanwhile the root places its own shards.
            {Throughput("gather", stats.network_bytes)
                 .Against("tcp", "bare TCP, 1 stream")
                 .AgainstBytes(sent),
             Throughput("gather", bytes, "whole model")
                 .Note(fmt::format("{} buckets of 64 MiB", stats.buckets))});
  bench.AddValue(name, "buckets", static_cast<double>(stats.peak_buffer_bytes) / kMiB, "MiB",
                 kBucketsMiB);
  bench.AddMemory(name, peak, kBucketsMiB + kMaxExtraMiB);
  return CheckFilled(name, half);
}

}  // namespace

Status JobCases(const ExportOptions& options, Bench& bench) {
  const auto run_all = [&](const std::string& prefix, const std::vector<MegatronJob>& jobs,
                           const auto& run) -> Status {
    for (const MegatronJob& job : jobs) {
      const std::string name = prefix + job.name;
      if (bench.Asked(name)) DW_RETURN_IF_ERROR(run(job, name, options.threads, bench));
    }
    return absl::OkStatus();
  };
  DW_RETURN_IF_ERROR(run_all("plan/", PlannedJobs(bench.quick), PlanCase));
  DW_RETURN_IF_ERROR(run_all("place/", PlacedJobs(bench.quick), PlaceCase));
  return run_all("gather/", GatheredJobs(bench.quick), GatherCase);
}

}  // namespace deltawire::bench
