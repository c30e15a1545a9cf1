// The receiver's metrics, read from the replicas' status at each scrape. The metrics server keeps
// the callback; the daemon outlives it.
#pragma once

#include <functional>

#include "common/metrics/metrics.h"

namespace deltawire::receiver {

class Daemon;

/// Counts of peers that were turned away. Both are called at each scrape.
struct PortCounts {
  std::function<uint64_t()> beyond_limits;  ///< connections and calls, of all ports
  std::function<uint64_t()> calls_refused;  ///< gRPC calls, for want of a role or a principal
};

metrics::Collect Probe(const Daemon& daemon, PortCounts ports);

}  // namespace deltawire::receiver
