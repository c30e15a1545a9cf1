// How long a trainer waits for receivers, however many and however slow they are, against a trainer
// that has none. Owner: none. One thread. Cost: 200 publishes of a small model for each kind of
// receivers. Errors: the daemons' own.
#pragma once

#include "bench/harness/bench.h"

namespace deltawire::bench {

/// Cases: wait/none, wait/8, wait/stopped, wait/slow.
Status TrainerWaits(Bench& bench, size_t kilobytes);

}  // namespace deltawire::bench
