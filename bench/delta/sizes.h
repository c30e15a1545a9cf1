// What a workload's changes cost in bits: our codecs, split into their parts, the entropy bounds,
// and folds against single deltas. Nothing here is timed. Threads: one caller; the pool's do the
// work. Cost: some seconds per GB; folds encode every single delta once more. Errors: kInternal
// when a kernel refuses its own payload, kDataLoss when bytes come out wrong.
#pragma once

#include "bench/delta/engine.h"
#include "bench/harness/bench.h"

namespace deltawire::bench {

/// Every case that a workload may have.
std::vector<std::string> SizeCaseNames(const std::string& workload);

/// Measures, and adds the rows that were asked for.
Status SizeCases(Bench& bench, const Workload& w, const Engine& engine, ThreadPool& pool);

}  // namespace deltawire::bench
