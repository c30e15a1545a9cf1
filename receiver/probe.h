// The receiver's metrics, read from its replicas when scraped. The daemon outlives the callback.
#pragma once

#include "common/metrics/metrics.h"

namespace deltawire::receiver {

class Replica;

/// `replicas` is called at each scrape.
metrics::Collect Probe(std::function<std::vector<Replica*>()> replicas);

}  // namespace deltawire::receiver
