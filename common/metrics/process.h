// What Prometheus's clients say of every process: its memory, threads, descriptors and processor
// time, by their conventional names. Stateless. Threads: any. Cost: a few files of /proc/self, and
// a directory entry for each descriptor. Errors: none; a value that cannot be read is left out.
#pragma once

#include <vector>

#include "common/metrics/metrics.h"

namespace deltawire::metrics {

std::vector<Sample> ProcessSamples();

}  // namespace deltawire::metrics
