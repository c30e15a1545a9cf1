// The trainer's side: copies by kind, plans, whole jobs, gathers, the Python package.
// See bench/README.md for what each case is.

#include <CLI/CLI.hpp>

#include "bench/export/job_cases.h"
#include "bench/export/place_cases.h"
#include "bench/harness/machine.h"
#include "common/base/human.h"
#include "kernels/kernels.h"

namespace deltawire::bench {
namespace {

Status Run(const PlaceOptions& options, bool quick, const std::string& json) {
  DW_ASSIGN_OR_RETURN(const auto report, Report::Create("export", json));
  fmt::print("export: {} ({} cores), {}, {} a case in pieces of {}, {} runs after {} warm-up{}\n\n",
             CpuName(), Cores(), kernels::Best().name, HumanBytes(options.bytes),
             HumanBytes(options.piece_bytes), options.rounds.runs, options.rounds.warmups,
             options.cpu_time ? ", in CPU time" : "");
  report->Common("backend", kernels::Best().name);
  report->Common("pages", options.shm ? "tmpfs" : "huge");
  report->Common("clock", options.cpu_time ? "cpu" : "wall");
  DW_RETURN_IF_ERROR(PlaceCases(options, *report));
  // Whole jobs wait for other processes, and their memory is what it is.
  if (!options.cpu_time && !options.shm) {
    const JobOptions jobs{options.threads, options.rounds, options.only, quick};
    DW_RETURN_IF_ERROR(PlanCases(jobs, *report));
    DW_RETURN_IF_ERROR(RankCases(jobs, *report));
    DW_RETURN_IF_ERROR(GatherCases(jobs, *report));
    DW_RETURN_IF_ERROR(PythonCases(jobs, *report));
    DW_RETURN_IF_ERROR(EarlyCases(jobs, *report));  // last: gRPC keeps its threads
  }
  return report->Finish();
}

int Main(int argc, char** argv) {
  PlaceOptions options;
  bool quick = false;
  uint64_t mebibytes = options.bytes >> 20, piece_kibibytes = options.piece_bytes >> 10;
  std::string json;
  CLI::App app("The trainer's side: layout programs, gathers, the Python package.", "bench_export");
  app.add_option("--mib", mebibytes, "Destination bytes of a case")
      ->check(CLI::Range(1, 1 << 15))
      ->capture_default_str();
  app.add_option("--piece-kib", piece_kibibytes, "What a thread takes at once")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "Numbers of threads")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--only", options.only, "Cases with this in their name");
  app.add_option("--runs", options.rounds.runs, "Runs of each case")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_flag("--shm", options.shm, "Buffers in tmpfs, as an engine's halves are");
  app.add_flag("--cpu-time", options.cpu_time,
               "Measure the threads' CPU time: for a machine with other work");
  app.add_flag("--quick", quick, "Everything on small buffers, once: does it still work?");
  app.add_flag("--check", options.check, "Compare with the scalar backend first");
  app.add_option("--json", json, "Write JSON lines to this file");
  CLI11_PARSE(app, argc, argv);
  options.bytes = mebibytes << 20;
  if (quick) {
    options.bytes = uint64_t{1} << 20;
    options.rounds = {.warmups = 0, .runs = 1};
    options.check = true;
  }
  options.piece_bytes = piece_kibibytes << 10;
  const Status status = Run(options, quick, json);
  if (status.ok()) return 0;
  fmt::print(stderr, "bench_export: {}\n", MessageOf(status));
  return 1;
}

}  // namespace
}  // namespace deltawire::bench

int main(int argc, char** argv) { return deltawire::bench::Main(argc, argv); }
