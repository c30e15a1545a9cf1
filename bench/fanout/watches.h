// Orchestrators that watch a sender's versions: what they cost it, and how soon all are told.
// Owner: none. Threads: gRPC's. Cost: a publish of a small model each time. Errors: the daemon's.
#pragma once

#include "bench/harness/bench.h"

namespace deltawire::bench {

/// Cases: watches/10, watches/100, watches/400.
Status Watches(Bench& bench, size_t kilobytes);

}  // namespace deltawire::bench
