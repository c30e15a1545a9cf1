// The cases of `./run bench gpu`: each is checked against the CPU's bytes first, then timed beside
// the device's own copy and the host link's. One thread.
// Errors: CUDA's, or kInternal where the GPU's bytes are not the CPU's.
#pragma once

#include "bench/delta/workload.h"
#include "bench/harness/bench.h"
#include "kernels/gpu.h"

namespace deltawire::bench {

/// kOk, or what CUDA said.
Status FromGpu(const kernels::GpuStatus& status);

/// diff_encode, decode_apply and digest, resident and host-staged. Cases end in the pair's name.
Status CodecCases(Bench& bench, const Workload& pair, ThreadPool& pool);

/// place, resident and host-staged: two column shards into one matrix.
Status PlaceCases(Bench& bench, const Workload& pair);

}  // namespace deltawire::bench
