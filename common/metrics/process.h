// The metrics that Prometheus's clients report of every process: memory, threads, descriptors and
// processor time, by their conventional names. They cost reads of /proc/self and of a directory
// entry for each descriptor. Values that cannot be read are omitted.
#pragma once

#include <vector>

#include "common/metrics/metrics.h"

namespace deltawire::metrics {

std::vector<Sample> ProcessSamples();

}  // namespace deltawire::metrics
