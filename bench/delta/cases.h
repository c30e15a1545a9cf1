// The cases of the suite `delta` for one workload: throughput with one and with several threads,
// all measured in the same rounds as the references; bits; folds; memory.
// Plain functions, called from main's thread. Errors are real ones (wrong bytes, refused payloads).
#pragma once

#include "bench/delta/workload.h"
#include "bench/harness/bench.h"

namespace deltawire::bench {

/// All cases of `w` that were asked for. `threads`: rising, from 1.
Status RunCases(Bench& bench, const Workload& w, const std::vector<size_t>& threads);

/// Every name that a case of a workload can have; some need past deltas or tight kernels.
std::vector<std::string> AllCaseNames(const std::string& workload,
                                      const std::vector<size_t>& threads);

}  // namespace deltawire::bench
