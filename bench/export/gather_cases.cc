// gather/: the ranks of a job as two processes on one machine, over loopback Gloo.
#include <unistd.h>

#include <cstring>

#include "bench/export/cases.h"
#include "bench/export/job.h"
#include "bench/harness/machine.h"
#include "bench/loopback/tcp_peer.h"
#include "common/shm/buffer_file.h"
#include "sender/export/gather/gloo_collective.h"
#include "sender/export/megatron/megatron_gather.h"
#include "tests/support/forked.h"

namespace deltawire::bench {
namespace {

// The suite's models are small: a bucket of the default 512 MiB would hold half of one.
constexpr uint64_t kBucketBytes = uint64_t{64} << 20;
constexpr double kBucketsMiB = 2 * kBucketBytes / kMiB;
constexpr double kMaxExtraMiB = 64;
constexpr std::chrono::minutes kPatience{2};

/// One rank of the two, in its own process.
class GatheringRank {
 public:
  static StatusOr<GatheringRank> Meet(uint32_t rank, const mcore::Plan& plan,
                                      const std::filesystem::path& dir) {
    GatheringRank r(plan);
    DW_ASSIGN_OR_RETURN(r.shards_, Shards::Make(plan, {rank}));
    GlooOptions gloo;
    gloo.rank = static_cast<int>(rank);
    gloo.size = 2;
    gloo.rendezvous = "file:" + dir.string();
    gloo.job = "bench";
    gloo.address = "127.0.0.1";
    DW_ASSIGN_OR_RETURN(r.collective_,
                        NewGlooCollective(gloo, std::chrono::steady_clock::now() + kPatience));
    return r;
  }

  /// `half`: the destination on the root, empty on the other rank.
  StatusOr<GatherStats> Gather(MutableBytes half, ThreadPool& pool) {
    GatherOptions options;
    options.bucket_bytes = kBucketBytes;
    options.buffers = &buffers_;
    const auto tensor = [&](uint32_t t) {
      return half.subspan(plan_->layout().offset(t), plan_->layout().bytes(t));
    };
    const Shards::Rank& mine = shards_.rank(0);
    return GatherToHf(
        *collective_, *plan_, mine.matches, mine.live,
        [&](size_t live) { return Bytes(mine.data[live]); }, tensor, pool, options);
  }

  const Shards& shards() const { return shards_; }

 private:
  explicit GatheringRank(const mcore::Plan& plan) : plan_(&plan) {}

  const mcore::Plan* plan_;
  Shards shards_;
  std::unique_ptr<Collective> collective_;
  GatherBuffers buffers_;
};

/// Runs rank 1, whose shards hold numbers that follow from their places in the model.
Status BeSecondRank(const mcore::Plan& plan, const std::filesystem::path& dir, size_t times) {
  DW_ASSIGN_OR_RETURN(GatheringRank rank, GatheringRank::Meet(1, plan, dir));
  {
    DW_ASSIGN_OR_RETURN(HugeBuffer half, HugeBuffer::Create(plan.layout().total_bytes()));
    DW_RETURN_IF_ERROR(rank.shards().FillFrom(half.data()));
  }
  ThreadPool pool(1);
  for (size_t i = 0; i < times; ++i) DW_RETURN_IF_ERROR(rank.Gather({}, pool).status());
  return absl::OkStatus();
}

Status GatherCase(const MegatronJob& job, const std::string& name, Bench& bench) {
  DW_ASSIGN_OR_RETURN(const auto planned, Planned::Make(job));
  const mcore::Plan& plan = planned->plan();
  const uint64_t bytes = plan.layout().total_bytes(), sent = plan.BytesPerRank()[1];
  if (AvailableMemory() < 4 * bytes) {
    bench.report().NotMeasured(name,
                               fmt::format("{} bytes and their shards do not fit here", bytes));
    return absl::OkStatus();
  }
  DW_ASSIGN_OR_RETURN(const auto shm, ScratchDir::Create());
  DW_ASSIGN_OR_RETURN(const auto peer, TcpPeer::Start(shm->path() / "landed", sent, 1));
  const testing::Forked second([&] {
    const Status status = BeSecondRank(plan, shm->path(), bench.rounds.total());
    if (!status.ok()) fmt::print(stderr, "rank 1: {}\n", MessageOf(status));
  });
  DW_ASSIGN_OR_RETURN(BufferFile file, BufferFile::Create(shm->path() / "half", plan.layout(), {}));
  const MutableBytes half = file.data();
  DW_ASSIGN_OR_RETURN(GatheringRank root, GatheringRank::Meet(0, plan, shm->path()));
  DW_RETURN_IF_ERROR(root.shards().FillFrom(half));
  std::memset(half.data(), 0, half.size());
  ThreadPool pool(1);
  GatherStats stats;
  const PeakMemory memory;
  DW_ASSIGN_OR_RETURN(const Series series, bench.Measure([&](Series& s) -> Status {
    DW_ASSIGN_OR_RETURN(const double tcp, peer->SendAll(half.first(peer->landed().size())));
    s.Add("tcp", tcp);
    return s.Time("gather", [&]() -> Status {
      DW_ASSIGN_OR_RETURN(stats, root.Gather(half, pool));
      return absl::OkStatus();
    });
  }));
  const auto peak = memory.Beyond();
  bench.Add(name, 1, series,
            // Only what travels counts. The root places its own shards meanwhile.
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

Status GatherCases(Bench& bench) {
  return ForJobs(GatheredJobs(bench.quick), "gather/", bench,
                 [&](const auto& job, const auto& name) { return GatherCase(job, name, bench); });
}

}  // namespace deltawire::bench
