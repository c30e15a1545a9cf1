// Whole jobs: planning, every rank's copies into a half, gathering over Gloo, the Python package.
// Each reports rows; nothing is kept between them. REQUIRES: no other thread runs (some fork).
// Errors: memory, processes, and results that are not the model's bytes.
#pragma once

#include <string>
#include <vector>

#include "bench/harness/report.h"
#include "bench/harness/sample.h"
#include "common/base/status.h"

namespace deltawire::bench {

struct JobOptions {
  std::vector<size_t> threads = {1, 2};
  Rounds rounds;
  std::string only;   ///< cases whose name has this in it
  bool tiny = false;  ///< one small job instead: does it still work?
};

/// plan/MODEL: plan and proof, one rank's programs, and the memory of both.
Status PlanCases(const JobOptions& options, Report& report);
/// place/MODEL/LAYOUT: shards of all ranks to a half in tmpfs, against memcpy.
Status RankCases(const JobOptions& options, Report& report);
/// gather/MODEL/LAYOUT: two processes, against bare TCP.
Status GatherCases(const JobOptions& options, Report& report);
/// offload/python: a script that says its rows.
Status PythonCases(const JobOptions& options, Report& report);

/// ready/ranks=N: ready to published where several ranks write every tensor, with chunks diffed as
/// soon as all have finished them, against a sender with --no-eager-diff. Starts threads that stay.
Status EarlyCases(const JobOptions& options, Report& report);

/// Whether a case of this name was asked for.
inline bool Asked(const JobOptions& options, std::string_view name) {
  return name.find(options.only) != std::string_view::npos;
}

}  // namespace deltawire::bench
