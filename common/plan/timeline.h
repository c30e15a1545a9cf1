// One version on its way through a fleet, on virtual time: publish, then hop by hop connect,
// transfer, apply and commit, each pull as the daemons do it. What overlaps there overlaps here: a
// relay passes on what comes to it. Plain values of one thread. Cost: hops squared. Errors: none.
#pragma once

#include <string>
#include <vector>

#include "common/plan/course.h"
#include "common/plan/hops.h"
#include "common/plan/pull_cost.h"

namespace deltawire::plan {

struct HopTimes {
  std::vector<StageTime> stages;
  bool held = false;  ///< whether the transfer ended so late because its upstream's did
  double committed = 0;
};

struct LinkUse {
  std::string name;
  double count = 1;  ///< links alike
  double rate = 0;   ///< bytes/s for payloads
  double bytes = 0;  ///< of one of them
  double busy_seconds = 0;
  double price = 0;  ///< of the bytes of all of them
};

struct NodeUse {
  std::string name;
  double count = 1;
  uint32_t cores = 1;
  double core_seconds = 0;  ///< of one of them
};

struct Timeline {
  StageTime publish;
  std::vector<HopTimes> hops;
  std::vector<LinkUse> links;
  std::vector<NodeUse> nodes;
  double seconds = 0;  ///< until the last receiver has committed
  size_t last = 0;     ///< its hop
};

/// `costs` has one pull for each hop.
Timeline RunVersion(const Fleet& fleet, const CutChunks& model, const std::vector<Hop>& hops,
                    const std::vector<PullCost>& costs, bool full);

/// Seconds that TCP's slow start adds to `bytes` at `bytes_per_s`: the pace that the transfer comes
/// to, whatever bounds it. So both together never take longer at a higher pace.
double SlowStartSeconds(double bytes, double bytes_per_s, double streams, double round_trip);

}  // namespace deltawire::plan
