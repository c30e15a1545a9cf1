// The sender's metrics. The agent outlives the returned callback.
#pragma once

#include <functional>

#include "common/metrics/metrics.h"
#include "sender/agent/agent.h"

namespace deltawire::sender {

/// The counts of the daemon's ports, called at each scrape.
struct PortCounts {
  std::function<uint64_t()> bulk_connections;  ///< open now
  std::function<uint64_t()> beyond_limits;     ///< refused connections and calls of both ports
  std::function<uint64_t()> calls_refused;     ///< gRPC calls without a principal or a role
};

metrics::Collect Probe(const Agent& agent, PortCounts ports);

}  // namespace deltawire::sender
