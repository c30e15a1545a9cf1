// The time that a trainer waits for receivers, however many and however slow, against a trainer
// without any. It takes 200 publishes of a small model for each kind of receivers. Errors are the
// daemons' own.
#pragma once

#include "bench/harness/bench.h"

namespace deltawire::bench {

/// Runs wait/none, wait/8, wait/stopped and wait/slow.
Status TrainerWaits(Bench& bench, size_t kilobytes);

}  // namespace deltawire::bench
