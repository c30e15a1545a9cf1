// The cases of the suite `delta` for one workload: throughput with one and with several threads,
// all measured in the same rounds as the references; bits; folds; memory. Call them from main's
// thread. Errors are wrong bytes and rejected payloads.
#pragma once

#include "bench/delta/engine.h"
#include "bench/harness/bench.h"

namespace deltawire::bench {

/// Runs all requested cases of `w`. `threads` has numbers of threads, rising, from 1.
Status RunCases(Bench& bench, const Workload& w, const std::vector<size_t>& threads);

/// Measures the bits of a workload's changes: our codecs, split into their parts, the entropy
/// bounds, and folds against single deltas. Not timed, on all threads of `pool`; takes some seconds
/// per GB.
Status SizeCases(Bench& bench, const Workload& w, const Engine& engine, ThreadPool& pool);

/// Returns every possible name of a workload's cases; some need past deltas or tight kernels.
std::vector<std::string> AllCaseNames(const std::string& workload,
                                      const std::vector<size_t>& threads);
std::vector<std::string> SizeCaseNames(const std::string& workload);

}  // namespace deltawire::bench
