// Throughput of one workload's operations and references, all measured in the same rounds.
// Called by cases.cc. One caller; the engine lives as long as the operations made of it.
#pragma once

#include "bench/delta/cases.h"
#include "bench/delta/engine.h"

namespace deltawire::bench {

/// What is aimed for; 0: nothing.
struct OperationTargets {
  double of_reference = 0;
  double of_pairs = 0;
  double gb_per_second = 0;
  double changes_per_second = 0;
  double of_one_thread = 0;
};

struct Operation {
  std::string name;
  std::function<StatusOr<double>(ThreadPool&)> run;  ///< seconds of one run
  uint64_t changes = 0;  ///< that it goes through; 0: not what it is measured by
  std::string pairs;     ///< the reference among pair lists: "pairs_encode", "pairs_apply" or none
  OperationTargets targets;
  std::string reference = "memcmp";  ///< the operation beside whose rate its own is put
};

/// All that the engine can do with its workload.
std::vector<Operation> Operations(Engine& engine);

std::vector<std::string> TimedCaseNames(const std::string& workload,
                                        const std::vector<size_t>& threads);
Status TimedCases(const Suite& suite, const Workload& w, Engine& engine);

}  // namespace deltawire::bench
