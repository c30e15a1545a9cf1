// The models of the suite: config.json of published checkpoints, whole or cut down, and layouts.
// Pure values.
#pragma once

#include <string>
#include <vector>

namespace deltawire::bench {

struct MegatronJob {
  std::string name;      ///< as it stands in a case's name
  std::string config;    ///< config.json
  std::string parallel;  ///< as ParallelConfig::Parse takes it
};

// With `tiny` each of these returns one job of some 100 KB on two ranks, to see that a case works.

/// Published shapes, on as many ranks as such models are trained on.
std::vector<MegatronJob> PlannedJobs(bool tiny);
/// About 1 to 2.5 GB each: fewer layers and experts and a shorter vocabulary, widths as published.
std::vector<MegatronJob> PlacedJobs(bool tiny);
/// Jobs of two ranks.
std::vector<MegatronJob> GatheredJobs(bool tiny);

}  // namespace deltawire::bench
