// A part of a suite in Python: a script that uses harness/script.py and prints rows. A row is a
// JSON line with metric, unit and runs, and optionally case, threads, note, reference with
// reference_runs, at_most and ratio_at_least. "SKIPPED: why" means that it cannot run here. Errors
// are its exit status, and a script without a row.
#pragma once

#include <string>
#include <vector>

#include "bench/harness/bench.h"

namespace deltawire::bench {

/// If the case `name` was requested, runs `script`, a path in bench/. The environment's `variable`
/// names the Python (else python3). `options` follow --bin, --warmups, --runs and --tiny. A row's
/// own case follows `name` after a slash.
Status RunPythonScript(const std::string& name, const std::string& script,
                       const std::vector<std::string>& options, Bench& bench,
                       const char* variable = "DELTAWIRE_TRAINER_PYTHON");

}  // namespace deltawire::bench
