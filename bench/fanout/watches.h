// Orchestrators that watch a sender's versions: their cost for it, and the time until all are
// notified. Each measurement publishes a small model. Errors are the daemon's.
#pragma once

#include "bench/harness/bench.h"

namespace deltawire::bench {

/// Runs watches/10, watches/100 and watches/400.
Status Watches(Bench& bench, size_t kilobytes);

}  // namespace deltawire::bench
