// The CUDA twins of the kernels: diff + encode, decode + apply, digest, place.
// See bench/README.md for what each case is.
#include <CLI/CLI.hpp>

#include "bench/gpu/cases.h"

namespace deltawire::bench {
namespace {

constexpr uint64_t kQuickMib = 16;

struct Options {
  uint64_t mib = 2048;
  std::vector<double> densities = {0.001, 0.01, 0.03, 0.08, 0.5};
  std::vector<std::string> pair;
  unsigned width = 2;
};

void Declare(CLI::App& app, Options& options) {
  app.add_option("--mib", options.mib, "Size of a half")
      ->check(CLI::Range(1, 1 << 17))
      ->capture_default_str();
  app.add_option("--density", options.densities, "Shares of elements that change")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--pair", options.pair, "Two raw little-endian files of your own instead: OLD NEW")
      ->expected(2);
  app.add_option("--width", options.width, "Bytes per element of these files")
      ->check(CLI::IsMember({1, 2, 4, 8}))
      ->capture_default_str();
}

StatusOr<std::vector<Source>> Sources(const Options& options, const Bench& bench) {
  std::vector<Source> out;
  if (!options.pair.empty()) {
    const DType dtype = options.width == 1   ? DType::kU8
                        : options.width == 2 ? DType::kU16
                        : options.width == 4 ? DType::kU32
                                             : DType::kU64;
    DW_ASSIGN_OR_RETURN(Source pair,
                        PairSource(options.pair[0], options.pair[1], dtype, bench.seed));
    out.push_back(std::move(pair));
    return out;
  }
  const WorkloadOptions workload{bench.quick ? kQuickMib : options.mib, bench.seed};
  for (const double density : options.densities) {
    out.push_back(RandomSource(fmt::format("bf16/d={}", density), density, workload));
  }
  return out;
}

/// Pins the pair's halves for as long as `pins` live. Copies from unpinned memory are slower.
void Pin(const Workload& pair, std::unique_ptr<kernels::GpuPin> (&pins)[2]) {
  if (!kernels::GpuPin::Create(pair.old_data.data(), &pins[0]).ok() ||
      !kernels::GpuPin::Create(pair.new_data.data(), &pins[1]).ok()) {
    fmt::print("the halves could not be pinned: links are slower so\n");
  }
}

Status Run(const Options& options, Bench& bench) {
  kernels::GpuInfo gpu;
  const kernels::GpuStatus found = kernels::FindGpu(0, &gpu);
  if (found.error == kernels::GpuError::kNotBuilt || found.error == kernels::GpuError::kNoDevice) {
    fmt::print("not measured: no CUDA device ({})\n", found.message);
    return absl::OkStatus();
  }
  DW_RETURN_IF_ERROR(FromGpu(found));
  fmt::print("     {} ({})\n\n", gpu.name, HumanBytes(gpu.memory_bytes));
  bench.report().Common("gpu", gpu.name);
  DW_ASSIGN_OR_RETURN(const std::vector<Source> sources, Sources(options, bench));
  ThreadPool pool;
  for (const Source& source : sources) {
    DW_ASSIGN_OR_RETURN(const Workload pair, source.make(pool));
    std::unique_ptr<kernels::GpuPin> pins[2];
    Pin(pair, pins);
    DW_RETURN_IF_ERROR(CodecCases(bench, pair, pool));
    if (&source == &sources.front()) DW_RETURN_IF_ERROR(PlaceCases(bench, pair));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace deltawire::bench

int main(int argc, char** argv) {
  using namespace deltawire::bench;
  return SuiteMain({"gpu", "The CUDA kernels, against the device's own copy and the host link's."},
                   Declare, Run, argc, argv);
}
