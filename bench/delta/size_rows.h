// The rows about bits: per change and codec against the bounds, folds, and against raw bytes.
// Called by cases.cc.
#pragma once

#include "bench/delta/cases.h"
#include "bench/delta/engine.h"

namespace deltawire::bench {

std::vector<std::string> SizeCaseNames(const std::string& workload);
Status SizeCases(const Suite& suite, const Workload& w, const Engine& engine);

}  // namespace deltawire::bench
