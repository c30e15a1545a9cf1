// The receiver's metrics, read from its replicas when scraped. The daemon outlives the callback.
#pragma once

#include "common/metrics/metrics.h"

namespace deltawire::receiver {

class Daemon;

metrics::Collect Probe(const Daemon& daemon);

}  // namespace deltawire::receiver
