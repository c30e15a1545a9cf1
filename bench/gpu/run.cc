// The suite `gpu`: the CUDA twins of the kernels, and the transfers of tensors to them and back,
// each beside a copy within the device or over the host link. bench/README.md describes the cases.
#include <CLI/CLI.hpp>
#include <bit>

#include "bench/gpu/suite.h"

namespace deltawire::bench {
namespace {

constexpr uint64_t kQuickMib = 16;
// Far larger than a device's cache. Random numbers for a large half would take half a minute.
constexpr uint64_t kRepeatMib = 512;

struct Options {
  uint64_t mib = 2048;
  std::vector<double> densities = {0.001, 0.01, 0.03, 0.08, 0.5};
  std::vector<std::string> pair;
  unsigned width = 2;
  double seconds = 600;
};

void Declare(CLI::App& app, Options& options) {
  app.add_option("--mib", options.mib, "Size of a half")->check(CLI::Range(1, 1 << 17));
  app.add_option("--density", options.densities, "Shares of elements that change")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--pair", options.pair, "Two raw little-endian files of your own instead: OLD NEW")
      ->expected(2)
      ->default_str("");
  app.add_option("--width", options.width, "Bytes per element of these files")
      ->check(CLI::IsMember({1, 2, 4, 8}));
  app.add_option("--seconds", options.seconds, "No case starts after so many")
      ->check(CLI::NonNegativeNumber);
}

StatusOr<std::vector<Source>> Sources(const Options& options, const Bench& bench) {
  std::vector<Source> out;
  if (!options.pair.empty()) {
    static constexpr DType kTypes[] = {DType::kU8, DType::kU16, DType::kU32, DType::kU64};
    const DType dtype = kTypes[std::countr_zero(options.width)];
    DW_ASSIGN_OR_RETURN(Source pair,
                        PairSource(options.pair[0], options.pair[1], dtype, bench.seed));
    out.push_back(std::move(pair));
    return out;
  }
  const WorkloadOptions workload{
      .mib = bench.quick ? kQuickMib : options.mib, .seed = bench.seed, .repeat_mib = kRepeatMib};
  for (const double density : options.densities) {
    out.push_back(RandomSource(fmt::format("bf16/d={}", density), density, workload));
  }
  return out;
}

Status Run(const Options& options, Bench& bench) {
  kernels::GpuInfo gpu;
  const kernels::GpuStatus found = kernels::FindGpu(0, &gpu);
  if (found.error == kernels::GpuError::kNotBuilt || found.error == kernels::GpuError::kNoDevice ||
      found.error == kernels::GpuError::kOldDriver) {
    fmt::print("not measured: no CUDA device ({})\n", found.message);
    return absl::OkStatus();
  }
  DW_RETURN_IF_ERROR(FromGpu(found));
  fmt::print("     {} ({})\n\n", gpu.name, HumanBytes(gpu.memory_bytes));
  bench.Common("gpu", gpu.name);
  Findings findings(options.seconds);
  if (const Status tested = FromGpu(kernels::GpuSelfTest(0)); !tested.ok()) {
    findings.Failed("self-test", tested);
  }
  DW_ASSIGN_OR_RETURN(const std::vector<Source> sources, Sources(options, bench));
  // Comes before any other thread runs.
  DW_ASSIGN_OR_RETURN(const std::unique_ptr<ScratchDir> dir, ScratchDir::Create());
  ThreadPool pool;
  for (const Source& source : sources) {
    if (findings.Late()) {
      bench.NotMeasured(source.name, "no time is left");
      continue;
    }
    DW_ASSIGN_OR_RETURN(const Workload pair, source.make(pool));
    GpuSuite suite(pair, dir->path(), pool, bench, findings);
    TrainerCases(suite);
    CodecCases(suite);
    EngineCases(suite);
    if (&source != &sources.front()) continue;
    LinkCases(suite, dir->path());
    PlaceCases(suite);
  }
  return findings.Result();
}

}  // namespace

int RunGpuSuite(int argc, char** argv) {
  return SuiteMain("gpu", "The CUDA kernels, against the device's own copy and the host link's.",
                   Declare, Run, argc, argv);
}

}  // namespace deltawire::bench
