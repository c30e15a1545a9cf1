// The cases of `./run bench gpu`. First a case's bytes are compared with the CPU's; then it is
// timed beside a copy within the device or a copy over the host link. One thread. Errors:
// kInternal, with CUDA's message or because the GPU's bytes are not the CPU's.
#pragma once

#include "bench/delta/workload.h"
#include "bench/harness/bench.h"
#include "kernels/gpu.h"

namespace deltawire::bench {

/// OK, or kInternal with CUDA's message.
Status FromGpu(const kernels::GpuStatus& status);

/// diff_encode and decode_apply, resident and host-staged; diff_encode and digest, with all bytes
/// on the device. The name of each case ends in the name of `pair`.
Status CodecCases(Bench& bench, const Workload& pair, ThreadPool& pool);

/// place, resident and host-staged: two column shards into one matrix.
Status PlaceCases(Bench& bench, const Workload& pair);

}  // namespace deltawire::bench
