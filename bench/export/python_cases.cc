// offload/python: what a trainer's offload takes from Python.
#include "bench/export/cases.h"
#include "bench/harness/python_script.h"

namespace deltawire::bench {

Status PythonCases(const ExportOptions& options, Bench& bench) {
  constexpr const char* kName = "offload/python";
  if (!bench.Asked(kName)) return absl::OkStatus();
  std::string threads;
  for (const size_t n : options.threads) threads += fmt::format(" --threads {}", n);
  return RunPythonScript({.name = kName,
                          .path = DELTAWIRE_BENCH_OFFLOAD,
                          .package = DELTAWIRE_BENCH_PYTHONPATH,
                          .bin = DELTAWIRE_BENCH_BIN,
                          .options = threads},
                         bench);
}

}  // namespace deltawire::bench
