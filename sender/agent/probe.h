// The sender's metrics. Owner of the returned callback: the metrics endpoint; the agent outlives
// it.
// Threads: any. Cost: each scrape reads the status of every model. Errors: none.
#pragma once

#include "common/metrics/metrics.h"
#include "sender/agent/agent.h"

namespace deltawire::sender {

metrics::Collect Probe(const Agent& agent);

}  // namespace deltawire::sender
