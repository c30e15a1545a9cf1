// plan/ and place/MODEL: what a trainer's ranks do with no network between them.
#include <chrono>
#include <fstream>

#include "bench/export/job.h"
#include "bench/export/job_cases.h"
#include "bench/harness/machine.h"
#include "bench/harness/peak_memory.h"
#include "bench/harness/scratch_dir.h"
#include "common/shm/buffer_file.h"

namespace deltawire::bench {
namespace {

using mcore::Direction;
using Clock = std::chrono::steady_clock;

constexpr double kMaxExtraMiB = 64;

double Since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void AddMemory(const std::string& name, std::optional<uint64_t> bytes, double at_most,
               std::string note, Report& report) {
  if (!bytes) {
    report.NotMeasured(name + " memory", "the kernel does not reset the peak");
    return;
  }
  Row row;
  row.name = name;
  row.metric = "memory";
  row.unit = "MiB";
  row.value = Summarize({static_cast<double>(*bytes) / (1 << 20)});
  row.wanted.value_at_most = at_most;
  row.note = std::move(note);
  report.Add(std::move(row));
}

void AddSeconds(const std::string& name, const char* metric, const Sample& seconds,
                std::string note, Report& report) {
  report.Add(
      Row{.name = name, .metric = metric, .value = seconds, .unit = "s", .note = std::move(note)});
}

Status PlanCase(const MegatronJob& job, const std::string& name, const Rounds& rounds,
                Report& report) {
  std::string note;
  uint32_t world = 1;
  const PeakMemory memory;
  DW_ASSIGN_OR_RETURN(const Series series, Measure(rounds, [&](Series& s) -> Status {
                        auto start = Clock::now();
                        DW_ASSIGN_OR_RETURN(const auto planned, Planned::Make(job));
                        s.Add("plan", Since(start));
                        const mcore::Plan& plan = planned->plan();
                        start = Clock::now();
                        size_t steps = 0;
                        for (const mcore::ShardParam& p : plan.Rank(0)) {
                          if (!p.writes || p.shape.empty()) continue;
                          const mcore::Split split = plan.planned()[p.planned].cut.split;
                          DW_ASSIGN_OR_RETURN(
                              const auto made,
                              mcore::StepsOf(plan, p, p.dtype, split, Direction::kToHf));
                          steps += made.size();
                        }
                        s.Add("rank", Since(start));
                        world = plan.parallel().world();
                        note = fmt::format("{} tensors, {} slots, {} copies on rank 0",
                                           plan.layout().size(), plan.planned().size(), steps);
                        return absl::OkStatus();
                      }));
  AddSeconds(name, "plan and proof", series.Of("plan"), note, report);
  AddSeconds(name, "one rank", series.Of("rank"), fmt::format("of {}", world), report);
  AddMemory(name, memory.Beyond(), 0, "at its peak", report);
  return absl::OkStatus();
}

/// How this process's shared memory is mapped: the half is the one piece of it.
std::string HalfPages() {
  std::ifstream in("/proc/self/smaps_rollup");
  for (std::string key; in >> key;) {
    uint64_t kib = 0;
    if (key == "ShmemPmdMapped:" && in >> kib) return kib > 0 ? "huge pages" : "4 KiB pages";
  }
  return "pages of unknown size";
}

Status AddThroughput(const std::string& name, const JobOptions& options, const Planned& planned,
                     const Shards& shards, std::span<const mcore::Transfer> programs,
                     MutableBytes half, Report& report) {
  for (const size_t threads : options.threads) {
    ThreadPool pool(threads);
    const Bytes from = shards.data().first(std::min(shards.data().size(), half.size()));
    DW_ASSIGN_OR_RETURN(const Series series, Measure(options.rounds, [&](Series& s) -> Status {
                          auto start = Clock::now();
                          CopyInParts(from, half, pool);
                          s.Add("memcpy", Since(start));
                          start = Clock::now();
                          RunAll(programs, Direction::kToHf, planned.plan(), half, pool);
                          s.Add("place", Since(start));
                          return absl::OkStatus();
                        }));
    Row row;
    row.name = name;
    row.metric = "throughput";
    row.unit = "GB/s";
    row.threads = threads;
    row.value = Rate(series.Of("place"), static_cast<double>(half.size()) / 1e9);
    row.reference = "memcpy";
    row.reference_value = Rate(series.Of("memcpy"), static_cast<double>(from.size()) / 1e9);
    row.wanted.ratio_at_least = 0.75;
    report.Add(std::move(row));
  }
  return absl::OkStatus();
}

Status RankCase(const MegatronJob& job, const std::string& name, const JobOptions& options,
                const ScratchDir& shm, Report& report) {
  DW_ASSIGN_OR_RETURN(const auto planned, Planned::Make(job));
  const mcore::Plan& plan = planned->plan();
  const uint64_t bytes = plan.layout().total_bytes();
  if (AvailableMemory() < 3 * bytes) {
    report.NotMeasured(name, fmt::format("{} bytes twice do not fit here", bytes));
    return absl::OkStatus();
  }
  std::vector<uint32_t> ranks(plan.parallel().world());
  for (uint32_t r = 0; r < ranks.size(); ++r) ranks[r] = r;
  DW_ASSIGN_OR_RETURN(const Shards shards, Shards::Make(plan, std::move(ranks)));
  // As the sender makes it; its bytes go with the mapping.
  DW_ASSIGN_OR_RETURN(BufferFile file, BufferFile::Create(shm.path() / "half", plan.layout(), {}));
  std::error_code ignored;
  std::filesystem::remove(shm.path() / "half", ignored);
  const MutableBytes half = file.data();
  {
    ThreadPool pool(1);
    DW_RETURN_IF_ERROR(shards.FillFrom(plan, half, pool));
  }
  const std::string pages = HalfPages();
  const PeakMemory memory;
  DW_ASSIGN_OR_RETURN(const auto programs, shards.Programs(plan, Direction::kToHf));
  DW_RETURN_IF_ERROR(AddThroughput(name, options, *planned, shards, programs, half, report));
  AddMemory(name, memory.Beyond(), kMaxExtraMiB, "half in " + pages, report);
  if (FilledByPlace(half)) return absl::OkStatus();
  return Errorf(StatusCode::kInternal, "{}: the half does not hold the model's bytes", name);
}

}  // namespace

Status PlanCases(const JobOptions& options, Report& report) {
  for (const MegatronJob& job : PlannedJobs(options.tiny)) {
    const std::string name = fmt::format("plan/{}", job.name);
    if (Asked(options, name)) DW_RETURN_IF_ERROR(PlanCase(job, name, options.rounds, report));
  }
  return absl::OkStatus();
}

Status RankCases(const JobOptions& options, Report& report) {
  DW_ASSIGN_OR_RETURN(const auto shm, ScratchDir::Create());
  for (const MegatronJob& job : PlacedJobs(options.tiny)) {
    const std::string name = fmt::format("place/{}", job.name);
    if (Asked(options, name)) DW_RETURN_IF_ERROR(RankCase(job, name, options, *shm, report));
  }
  return absl::OkStatus();
}

}  // namespace deltawire::bench
