// The sender's metrics. The agent outlives the returned callback. Each scrape reads the status of
// every model.
#pragma once

#include <functional>

#include "common/metrics/metrics.h"
#include "sender/agent/agent.h"

namespace deltawire::sender {

/// What the daemon's ports count. All are called at each scrape.
struct PortCounts {
  std::function<uint64_t()> bulk_connections;  ///< open now
  std::function<uint64_t()> beyond_limits;     ///< connections and calls, of both ports
  std::function<uint64_t()> calls_refused;     ///< gRPC calls, for want of a role or a principal
};

metrics::Collect Probe(const Agent& agent, PortCounts ports);

}  // namespace deltawire::sender
