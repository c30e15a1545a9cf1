// The suite `delta`: the kernels and codecs alone, in memory, against memcmp, plain loops,
// comparable projects' encodings, and entropy bounds. bench/README.md describes the cases.
#include <CLI/CLI.hpp>

#include "bench/delta/cases.h"
#include "bench/harness/machine.h"

namespace deltawire::bench {
namespace {

constexpr uint64_t kQuickMib = 4;

struct Options {
  std::vector<std::string> pair;
  std::string dtype = "BF16";
  uint64_t mib = 512;
  size_t threads = 2;
};

void Declare(CLI::App& app, Options& options) {
  app.add_option("--pair", options.pair,
                 "Two versions of your own: raw little-endian files, safetensors files or model "
                 "directories")
      ->expected(2)
      ->default_str("");
  app.add_option("--dtype", options.dtype, "Element type of raw files");
  app.add_option("--mib", options.mib, "Size of a synthetic version, MiB")
      ->check(CLI::Range(1, 65536));
  app.add_option("--threads", options.threads, "The most threads; 1 is always measured")
      ->check(CLI::Range(1, 1024));
}

Status Run(const Options& options, Bench& bench) {
  std::vector<Source> sources;
  if (options.pair.empty()) {
    sources = SyntheticSources({bench.quick ? kQuickMib : options.mib, bench.seed});
  } else {
    DW_ASSIGN_OR_RETURN(const DType dtype, ParseDType(options.dtype));
    DW_ASSIGN_OR_RETURN(Source pair,
                        PairSource(options.pair[0], options.pair[1], dtype, bench.seed));
    sources.push_back(std::move(pair));
  }
  std::vector<size_t> threads = {1};
  if (options.threads > 1) threads.push_back(options.threads);
  if (kernels::Best().tight_encode == nullptr) {
    bench.NotMeasured("tight", "the best backend of this machine has no such kernels");
  }
  ThreadPool pool;
  for (const Source& source : sources) {
    if (!bench.AnyAsked(AllCaseNames(source.name, threads))) continue;
    DW_ASSIGN_OR_RETURN(const Workload w, source.make(pool));
    fmt::print("\n{}: {}, {:.3g}% of {} elements changed, {:.0f}% in huge pages\n", w.name,
               HumanBytes(w.bytes()),
               100 * static_cast<double>(w.changed) / static_cast<double>(w.elements), w.elements,
               100 * HugePageShare());
    bench.Common("model_bytes", w.bytes());
    DW_RETURN_IF_ERROR(RunCases(bench, w, threads));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace deltawire::bench

int main(int argc, char** argv) {
  using namespace deltawire::bench;
  return SuiteMain("delta", "Kernels and codecs in memory, against plain references and bounds.",
                   Declare, Run, argc, argv);
}
