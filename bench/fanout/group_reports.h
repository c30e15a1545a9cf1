// What reports of a large group's members cost the sender, without sockets. Threads: one.
#pragma once

#include "bench/harness/bench.h"

namespace deltawire::bench {

Status GroupReports(Bench& bench, size_t members);

}  // namespace deltawire::bench
