// A part of a suite that is written in Python: runs the script, which script.py helps, and reports
// the rows that it says. A row is a JSON line: metric, unit, runs, and where there are such: case,
// threads, note, reference with reference_runs, at_most. "SKIPPED: why" says that it cannot run
// here. Owner: none. One thread. Cost: the script's. Errors: its exit status, and a script without
// a row.
#pragma once

#include <string>

#include "bench/harness/bench.h"
#include "common/base/status.h"

namespace deltawire::bench {

struct PythonScript {
  std::string name;     ///< the case; a row's own case is added after a slash
  std::string path;     ///< the script
  std::string package;  ///< the directory that has the Python package
  std::string bin;      ///< the directory of the daemons
  std::string options;  ///< beyond --bin, --warmups, --runs and --tiny
};

/// Runs it with DELTAWIRE_TRAINER_PYTHON, or python3.
Status RunPythonScript(const PythonScript& script, Bench& bench);

}  // namespace deltawire::bench
