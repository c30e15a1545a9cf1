// The kernels and codecs alone, in memory, against memcmp, plain loops, what peers do, and entropy
// bounds. See bench/README.md for what each case is.

#include <CLI/CLI.hpp>

#include "bench/delta/cases.h"
#include "bench/harness/machine.h"
#include "common/base/human.h"

namespace deltawire::bench {
namespace {

constexpr uint64_t kQuickMib = 4;

struct Options {
  std::vector<std::string> pair;
  std::string dtype = "BF16";
  std::string json;
  std::string only;
  std::string backend;
  WorkloadOptions workload;
  CaseOptions cases;
  size_t threads = 2;
  bool quick = false;
};

StatusOr<const kernels::Backend*> FindBackend(const std::string& name) {
  if (name.empty()) return &kernels::Best();
  std::string known;
  for (const kernels::Backend* b : kernels::All()) {
    if (b->name == name) return b;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", b->name);
  }
  return Errorf(StatusCode::kNotFound, "no backend \"{}\" on this machine; there are {}", name,
                known);
}

Status ReadOptions(Options& options) {
  if (options.quick) {
    options.workload.mib = kQuickMib;
    options.cases.rounds = {0, 1};
  }
  options.cases.threads = {1};
  if (options.threads > 1) options.cases.threads.push_back(options.threads);
  if (options.only.empty()) return absl::OkStatus();
  try {
    options.cases.only.emplace(options.only);
  } catch (const std::regex_error& e) {
    return Errorf(StatusCode::kInvalidArgument, "--only \"{}\" is no regular expression: {}",
                  options.only, e.what());
  }
  return absl::OkStatus();
}

StatusOr<std::vector<Source>> Sources(const Options& options) {
  if (options.pair.empty()) return SyntheticSources(options.workload);
  DW_ASSIGN_OR_RETURN(const DType dtype, ParseDType(options.dtype));
  DW_ASSIGN_OR_RETURN(Source source, PairSource(options.pair[0], options.pair[1], dtype));
  std::vector<Source> out;
  out.push_back(std::move(source));
  return out;
}

Status Run(Options& options) {
  DW_RETURN_IF_ERROR(ReadOptions(options));
  DW_ASSIGN_OR_RETURN(const kernels::Backend* const kernels, FindBackend(options.backend));
  DW_ASSIGN_OR_RETURN(const std::vector<Source> sources, Sources(options));
  DW_ASSIGN_OR_RETURN(const auto report,
                      Report::Create("delta", options.json, Report::Table::kBrief));
  report->Common("backend", std::string(kernels->name));
  report->Common("seed", options.workload.seed);
  fmt::print(
      "delta: backend {}, seed {}, {} runs after {} warm-up, {} chunks\n       {}, {} cores\n",
      kernels->name, options.workload.seed, options.cases.rounds.runs, options.cases.rounds.warmups,
      HumanBytes(kChunkBytes), CpuName(), Cores());
  if (kernels->tight_encode == nullptr) {
    report->NotMeasured("tight", fmt::format("the backend {} has no such kernels", kernels->name));
  }
  const kernels::DigestKey key(options.workload.seed);
  ThreadPool pool;
  for (const Source& source : sources) {
    if (!AnyAsked(options.cases, source.name)) continue;
    DW_ASSIGN_OR_RETURN(const Workload w, source.make(*kernels, key, pool));
    fmt::print("\n{}: {}, {:.3g}% of {} elements changed, {:.0f}% in huge pages\n", w.name,
               HumanBytes(w.bytes()),
               100 * static_cast<double>(w.changed) / static_cast<double>(w.elements), w.elements,
               100 * HugePageShare());
    report->Common("model_bytes", w.bytes());
    DW_RETURN_IF_ERROR(RunCases({*kernels, key, options.cases, pool, *report}, w));
  }
  return report->Finish();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Kernels and codecs in memory, against plain references and entropy bounds.",
               "bench_delta");
  app.add_option("--pair", options.pair,
                 "Two versions of your own: raw little-endian files, safetensors files or model "
                 "directories")
      ->expected(2);
  app.add_option("--dtype", options.dtype, "Element type of raw files")->capture_default_str();
  app.add_option("--mib", options.workload.mib, "Size of a synthetic version, MiB")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--runs", options.cases.rounds.runs, "Runs of each case")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "The most threads; 1 is always measured")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--seed", options.workload.seed, "Seed of weights, changes and the digest's key")
      ->capture_default_str();
  app.add_option("--backend", options.backend, "Kernels by name; default: the best of the machine");
  app.add_option("--only", options.only, "Only cases whose names match this regular expression");
  app.add_option("--json", options.json, "Write JSON lines to this file");
  app.add_flag("--quick", options.quick, "A few MiB and one run: does it still work?");
  CLI11_PARSE(app, argc, argv);
  const Status status = Run(options);
  if (status.ok()) return 0;
  fmt::print(stderr, "bench_delta: {}\n", MessageOf(status));
  return 1;
}

}  // namespace
}  // namespace deltawire::bench

int main(int argc, char** argv) { return deltawire::bench::Main(argc, argv); }
