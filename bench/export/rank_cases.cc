// plan/ and place/MODEL: what a trainer's ranks do with no network between them.
#include <numeric>

#include "bench/export/cases.h"
#include "bench/export/job.h"
#include "bench/harness/machine.h"
#include "common/shm/buffer_file.h"

namespace deltawire::bench {
namespace {

using mcore::Direction;

constexpr double kMaxExtraMiB = 64;

Status PlanCase(const MegatronJob& job, const std::string& name, Bench& bench) {
  std::string note;
  uint32_t world = 1;
  const PeakMemory memory;
  DW_ASSIGN_OR_RETURN(const Series series, bench.Measure([&](Series& s) -> Status {
    std::unique_ptr<Planned> planned;
    DW_RETURN_IF_ERROR(s.Time("plan", [&]() -> Status {
      DW_ASSIGN_OR_RETURN(planned, Planned::Make(job));
      return absl::OkStatus();
    }));
    const mcore::Plan& plan = planned->plan();
    size_t steps = 0;
    DW_RETURN_IF_ERROR(s.Time("rank", [&]() -> Status {
      for (const mcore::Match& m : WrittenBy(plan, 0)) {
        DW_ASSIGN_OR_RETURN(const auto made,
                            StepsOf(plan, m.shard, m.shard.dtype, m.split, Direction::kToHf));
        steps += made.size();
      }
      return absl::OkStatus();
    }));
    world = plan.parallel().world();
    note = fmt::format("{} tensors, {} parameters, {} copies on rank 0", plan.layout().size(),
                       plan.planned().size(), steps);
    return absl::OkStatus();
  }));
  bench.Add(name, 1, series,
            {Value("plan and proof", "plan").Note(note),
             Value("one rank", "rank").Note(fmt::format("of {}", world))});
  bench.AddMemory(name, memory.Beyond(), 0, "at its peak");
  return absl::OkStatus();
}

/// How the half is mapped, which is the only shared memory of this process.
const char* HalfPages() {
  return ProcBytes("/proc/self/smaps_rollup", "ShmemPmdMapped:") > 0 ? "half in huge pages"
                                                                     : "half in 4 KiB pages";
}

Status RankCase(const MegatronJob& job, const std::string& name, const ExportOptions& options,
                const ScratchDir& shm, Bench& bench) {
  DW_ASSIGN_OR_RETURN(const auto planned, Planned::Make(job));
  const mcore::Plan& plan = planned->plan();
  const uint64_t bytes = plan.layout().total_bytes();
  if (AvailableMemory() < 3 * bytes) {
    bench.report().NotMeasured(name, fmt::format("{} bytes twice do not fit here", bytes));
    return absl::OkStatus();
  }
  std::vector<uint32_t> ranks(plan.parallel().world());
  std::iota(ranks.begin(), ranks.end(), 0);
  DW_ASSIGN_OR_RETURN(const Shards shards, Shards::Make(plan, std::move(ranks)));
  // The half is made as the sender makes one. Its name is removed at once, so that its memory goes
  // with the mapping.
  DW_ASSIGN_OR_RETURN(BufferFile file, BufferFile::Create(shm.path() / "half", plan.layout(), {}));
  std::filesystem::remove(shm.path() / "half");
  const MutableBytes half = file.data();
  DW_RETURN_IF_ERROR(shards.FillFrom(half));
  const char* const pages = HalfPages();
  const PeakMemory memory;
  DW_ASSIGN_OR_RETURN(const auto programs, shards.Programs(Direction::kToHf));
  const Bytes from = shards.data().first(std::min<size_t>(shards.data().size(), half.size()));
  for (const size_t threads : options.threads) {
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

}  // namespace

Status PlanCases(Bench& bench) {
  return ForJobs(PlannedJobs(bench.quick), "plan/", bench,
                 [&](const auto& job, const auto& name) { return PlanCase(job, name, bench); });
}

Status RankCases(const ExportOptions& options, Bench& bench) {
  DW_ASSIGN_OR_RETURN(const auto shm, ScratchDir::Create());
  return ForJobs(PlacedJobs(bench.quick), "place/", bench, [&](const auto& job, const auto& name) {
    return RankCase(job, name, options, *shm, bench);
  });
}

}  // namespace deltawire::bench
