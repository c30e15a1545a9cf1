// The receiver's metrics, read from the replicas' status at each scrape.
// Owner: the metrics server keeps the callback; the daemon outlives it. Threads: any. No errors.
#pragma once

#include "common/metrics/metrics.h"

namespace deltawire::receiver {

class Daemon;

metrics::Collect Probe(const Daemon& daemon);

}  // namespace deltawire::receiver
