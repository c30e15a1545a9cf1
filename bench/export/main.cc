// The suite `export`, the trainer's side: copies by kind, plans, whole jobs, gathers, the Python
// package. bench/README.md describes the cases.
#include <CLI/CLI.hpp>

#include "bench/export/cases.h"
#include "bench/harness/python_script.h"

namespace deltawire::bench {
namespace {

void Declare(CLI::App& app, ExportOptions& options) {
  app.add_option("--mib", options.mib, "Destination bytes of a kind of copy")
      ->check(CLI::Range(1, 1 << 15));
  app.add_option("--threads", options.threads, "Numbers of threads")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  app.add_flag("--shm", options.shm, "Kinds of copies in tmpfs, as an engine's halves are");
  app.add_flag("--cpu-time", options.cpu_time,
               "Measure the threads' CPU time: for a machine with other work");
}

Status Run(const ExportOptions& options, Bench& bench) {
  fmt::print("        {} MiB a kind of copy{}\n\n", options.mib,
             options.cpu_time ? ", in CPU time" : "");
  bench.Common("pages", options.shm ? "tmpfs" : "huge");
  bench.Common("clock", options.cpu_time ? "cpu" : "wall");
  DW_RETURN_IF_ERROR(PlaceCases(options, bench));
  // Whole jobs wait for other processes, so their CPU time says little, and --shm does not apply to
  // their memory.
  if (options.cpu_time || options.shm) return absl::OkStatus();
  DW_RETURN_IF_ERROR(JobCases(options, bench));
  std::vector<std::string> threads;
  for (const size_t n : options.threads) {
    threads.insert(threads.end(), {"--threads", std::to_string(n)});
  }
  DW_RETURN_IF_ERROR(RunPythonScript("offload/python", "export/offload_python.py", threads, bench));
  return EarlyCases(bench);  // last, since gRPC's threads stay and the cases above fork
}

}  // namespace
}  // namespace deltawire::bench

int main(int argc, char** argv) {
  using namespace deltawire::bench;
  return SuiteMain("export", "The trainer's side: layout programs, gathers, the Python package.",
                   Declare, Run, argc, argv);
}
