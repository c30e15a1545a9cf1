// The cases of the suite `delta` for one workload: throughput with one and with several threads,
// all measured in the same rounds as the references; bits; folds; memory.
// Plain functions, called from main's thread. Errors: wrong bytes or refused payloads.
#pragma once

#include "bench/delta/engine.h"
#include "bench/harness/bench.h"

namespace deltawire::bench {

/// Runs all cases of `w` that were asked for. `threads`: numbers of threads, rising, from 1.
Status RunCases(Bench& bench, const Workload& w, const std::vector<size_t>& threads);

/// What a workload's changes cost in bits: our codecs, split into their parts, the entropy bounds,
/// and folds against single deltas. Not timed, on all threads of `pool`; some seconds per GB.
Status SizeCases(Bench& bench, const Workload& w, const Engine& engine, ThreadPool& pool);

/// Every name that a case of a workload can have; some need past deltas or tight kernels.
std::vector<std::string> AllCaseNames(const std::string& workload,
                                      const std::vector<size_t>& threads);
std::vector<std::string> SizeCaseNames(const std::string& workload);

}  // namespace deltawire::bench
