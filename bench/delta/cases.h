// The cases of the suite `delta` for one workload: throughput with one and with several threads,
// interleaved with the references; bits; folds; memory. Rows go to the report as they come.
// Plain functions, called from main's thread. Errors are real ones (wrong bytes, refused payloads);
// a slow result is none.
#pragma once

#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "bench/delta/workload.h"
#include "bench/harness/report.h"

namespace deltawire::bench {

struct CaseOptions {
  Rounds rounds;
  std::vector<size_t> threads = {1, 2};  ///< rising, from 1
  std::optional<std::regex> only;        ///< case names that are searched for it

  bool Asked(const std::string& name) const { return !only || std::regex_search(name, *only); }
};

struct Suite {
  const kernels::Backend& kernels;
  const kernels::DigestKey& key;
  const CaseOptions& options;
  ThreadPool& pool;  ///< for all that is not timed
  Report& report;
};

/// All cases of `w` that were asked for.
Status RunCases(const Suite& suite, const Workload& w);

/// Every name that a case of a workload can have; some need past deltas or tight kernels.
std::vector<std::string> AllCaseNames(const std::string& workload,
                                      const std::vector<size_t>& threads);

/// Whether any case of a workload of this name can be asked for: else it need not be made.
bool AnyAsked(const CaseOptions& options, const std::string& workload);

}  // namespace deltawire::bench
