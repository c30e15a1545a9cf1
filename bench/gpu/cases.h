// The cases of `./run bench gpu`: each is checked against the CPU's bytes first, then timed beside
// the device's own copy and the host link's. One thread.
// Errors: CUDA's, or kInternal where the GPU's bytes are not the CPU's.
#pragma once

#include "bench/gpu/pair.h"
#include "bench/harness/report.h"
#include "bench/harness/sample.h"

namespace deltawire::bench {

struct GpuCases {
  const Pair* pair = nullptr;
  Report* report = nullptr;
  Rounds rounds;
  std::string trace;  ///< of a case's name: what the pair is
  kernels::GpuOptions options;
};

/// diff_encode, decode_apply and digest, resident and host-staged.
Status CodecCases(const GpuCases& cases);

/// Two column shards into one matrix.
Status PlaceCases(const GpuCases& cases);

}  // namespace deltawire::bench
