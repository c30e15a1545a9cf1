// The receiver's metrics, read from the replicas' status at each scrape.
// Owner: the metrics server keeps the callback; the daemon outlives it. Threads: any. No errors.
#pragma once

#include "common/metrics/metrics.h"

namespace deltawire::receiver {

class Daemon;

/// `calls_refused`: the gRPC calls that were refused so far.
metrics::Collect Probe(const Daemon& daemon, std::function<uint64_t()> calls_refused);

}  // namespace deltawire::receiver
