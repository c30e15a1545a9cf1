// The sender's metrics, read from the agent when scraped. The agent outlives the callback.
#pragma once

#include "common/metrics/metrics.h"
#include "sender/agent/agent.h"

namespace deltawire::sender {

metrics::Collect Probe(const Agent& agent);

}  // namespace deltawire::sender
