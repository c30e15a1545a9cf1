// The CUDA twins of the kernels: diff + encode, decode + apply, digest, place.
// See bench/README.md for what each case is.

#include <CLI/CLI.hpp>

#include "bench/gpu/cases.h"
#include "common/base/human.h"

namespace deltawire::bench {
namespace {

struct Options {
  uint64_t mebibytes = 2048;
  std::vector<double> densities = {0.001, 0.01, 0.03, 0.08, 0.5};
  std::vector<std::string> pair;
  unsigned width = 2;
  int device = 0;
  uint64_t slab_mebibytes = 32;
  size_t slabs = 3;
  Rounds rounds;
  uint64_t seed = 1;
  std::string json;
};

GpuCases Cases(const Options& options, const Pair& pair, Report& report, std::string trace) {
  GpuCases cases;
  cases.pair = &pair;
  cases.report = &report;
  cases.rounds = options.rounds;
  cases.trace = std::move(trace);
  cases.options.device = options.device;
  cases.options.slab_bytes = options.slab_mebibytes << 20;
  cases.options.slabs = options.slabs;
  return cases;
}

Status Run(const Options& options) {
  kernels::GpuInfo gpu;
  const kernels::GpuStatus found = kernels::FindGpu(options.device, &gpu);
  const bool none = found.error == kernels::GpuError::kNotBuilt ||
                    (found.error == kernels::GpuError::kNoDevice && options.device == 0);
  if (!found.ok() && !none) return absl::UnavailableError(found.message);
  if (none) {
    fmt::print("not measured: no CUDA device ({})\n", found.message);
    return absl::OkStatus();
  }
  DW_ASSIGN_OR_RETURN(const auto report, Report::Create("gpu", options.json));
  ThreadPool pool;
  fmt::print("gpu: {} ({}), seed {}, slabs of {} MiB x {}, {} runs after {} warm-up\n\n", gpu.name,
             HumanBytes(gpu.memory_bytes), options.seed, options.slab_mebibytes, options.slabs,
             options.rounds.runs, options.rounds.warmups);
  report->Common("gpu", gpu.name);
  report->Common("seed", options.seed);
  if (!options.pair.empty()) {
    DW_ASSIGN_OR_RETURN(const auto pair,
                        Pair::FromFiles(options.pair[0], options.pair[1], options.width, pool));
    const GpuCases cases = Cases(options, *pair, *report, "pair");
    DW_RETURN_IF_ERROR(CodecCases(cases));
    DW_RETURN_IF_ERROR(PlaceCases(cases));
    return report->Finish();
  }
  for (const double density : options.densities) {
    const auto pair = Pair::Drawn(options.mebibytes << 20, density, options.seed, pool);
    if (!pair->pinned()) fmt::print("the halves could not be pinned: links are slower so\n");
    const GpuCases cases = Cases(options, *pair, *report, fmt::format("bf16/d={}", density));
    DW_RETURN_IF_ERROR(CodecCases(cases));
    if (density == options.densities.front()) DW_RETURN_IF_ERROR(PlaceCases(cases));
  }
  return report->Finish();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("The CUDA kernels, against the device's own copy and the host link's.", "bench_gpu");
  app.add_option("--mib", options.mebibytes, "Size of a half")
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
  app.add_option("--device", options.device, "Which GPU")->capture_default_str();
  app.add_option("--slab-mib", options.slab_mebibytes, "A step of the pipeline")
      ->check(CLI::Range(8, 4096))
      ->capture_default_str();
  app.add_option("--slabs", options.slabs, "Steps under way at once")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--runs", options.rounds.runs, "Runs of each case")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Seed of weights and changes")->capture_default_str();
  app.add_option("--json", options.json, "Write JSON lines to this file");
  CLI11_PARSE(app, argc, argv);
  const Status status = Run(options);
  if (status.ok()) return 0;
  fmt::print(stderr, "bench_gpu: {}\n", MessageOf(status));
  return 1;
}

}  // namespace
}  // namespace deltawire::bench

int main(int argc, char** argv) { return deltawire::bench::Main(argc, argv); }
