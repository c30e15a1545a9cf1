// The sender's cost for reports of a large group's members, without sockets, on one thread.
#pragma once

#include "bench/harness/bench.h"

namespace deltawire::bench {

Status GroupReports(Bench& bench, size_t members);

}  // namespace deltawire::bench
