// A part of a suite that is written in Python: runs the script, which uses harness/script.py, and
// reports the rows that it prints. A row is a JSON line: metric, unit, runs, and where there are
// such: case, threads, note, reference with reference_runs, at_most, ratio_at_least. "SKIPPED: why"
// says that it cannot run here. Owner: none. One thread. Cost: the script's. Errors: its exit
// status, and a script without a row.
#pragma once

#include <string>
#include <vector>

#include "bench/harness/bench.h"

namespace deltawire::bench {

/// Runs `script`, a path in bench/, for the case `name`, if it was asked for, with the Python that
/// the environment's `variable` names (else python3), and with `options` beyond --bin, --warmups,
/// --runs and --tiny. A row's own case follows `name` after a slash.
Status RunPythonScript(const std::string& name, const std::string& script,
                       const std::vector<std::string>& options, Bench& bench,
                       const char* variable = "DELTAWIRE_TRAINER_PYTHON");

}  // namespace deltawire::bench
