// A prediction for a fleet. It runs versions one after the other, so that the product's own link
// estimate picks each pull's codec, and names the slowest stage. For one thread; takes
// milliseconds, and a chunk table of the model. kInvalidArgument is the error for a model that
// cannot be cut.
#pragma once

#include <vector>

#include "common/plan/timeline.h"

namespace deltawire::plan {

/// The forecast for one kind of version: a late delta, or the first version, which goes whole.
struct Forecast {
  std::vector<PullCost> pulls;           ///< by hop
  std::vector<double> link_bytes_per_s;  ///< by hop, the estimate that chose the codec
  Timeline timeline;
  std::vector<StageTime> path;  ///< of the last receiver: publish, then each hop's stages
  size_t critical = 0;          ///< index into `path`
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
