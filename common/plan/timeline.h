// A version's timeline through a fleet, on virtual time: publish, then hop by hop connect,
// transfer, apply and commit, as the daemons do it. Stages overlap as in the daemons: a relay
// passes chunks on as they come. For one thread; costs hops squared.
#pragma once

#include <string>
#include <vector>

#include "common/plan/course.h"
#include "common/plan/hops.h"
#include "common/plan/pull_cost.h"

namespace deltawire::plan {

struct HopTimes {
  std::vector<StageTime> stages;
  bool held = false;  ///< whether the upstream's transfer delayed the end of this one
  double committed = 0;
};

struct LinkUse {
  std::string name;
  double count = 1;  ///< number of equal links
  double rate = 0;   ///< bytes/s for payloads
  double bytes = 0;  ///< of one link
  double busy_seconds = 0;
  double price = 0;  ///< of the bytes of all links
};

struct NodeUse {
  std::string name;
  double count = 1;
  uint32_t cores = 1;
  double core_seconds = 0;  ///< of one node
};

struct Timeline {
  StageTime publish;
  std::vector<HopTimes> hops;
  std::vector<LinkUse> links;
  std::vector<NodeUse> nodes;
  double seconds = 0;  ///< until the last receiver has committed
  size_t last = 0;     ///< that receiver's hop
};

Timeline RunVersion(const Fleet& fleet, const CutChunks& model, const std::vector<Hop>& hops,
                    const std::vector<PullCost>& costs, bool full);

/// Returns the seconds that TCP's slow start adds to `bytes` at `bytes_per_s`, the pace that the
/// transfer reaches, whatever limits it. So a higher pace never makes the total time longer.
double SlowStartSeconds(double bytes, double bytes_per_s, double streams, double round_trip);

}  // namespace deltawire::plan
