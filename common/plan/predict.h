// What a fleet will do: runs versions one after the other, so that each pull's codec is the one
// that the product's own estimate of its link would pick, and names the stage that takes the most.
// Plain values of one thread. Cost: some versions on virtual time; milliseconds, and a chunk table
// of the model. Errors: kInvalidArgument where the model cannot be cut.
#pragma once

#include <vector>

#include "common/plan/timeline.h"

namespace deltawire::plan {

/// One kind of version: the newest delta of many, or the first one, whole.
struct Forecast {
  std::vector<PullCost> pulls;           ///< by hop
  std::vector<double> link_bytes_per_s;  ///< by hop, as the estimate that chose the codec
  Timeline timeline;
  std::vector<StageTime> path;  ///< of the receiver that is last: publish, then each hop's stages
  size_t critical = 0;          ///< of `path`
  double price = 0;             ///< of all links
};

struct Prediction {
  CutChunks model;
  std::vector<Hop> hops;
  Forecast delta, full;
};

/// REQUIRES: `fleet` outlives the result.
StatusOr<Prediction> Predict(const Fleet& fleet);

}  // namespace deltawire::plan
