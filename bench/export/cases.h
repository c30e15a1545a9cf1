// The cases of the suite `export`: copies by kind, plans, every rank's copies into a half, gathers
// over Gloo, several ranks at one sender. REQUIRES: no other thread runs, since some cases fork.
// Errors are too little memory, failed processes, and results that are not the model's bytes.
#pragma once

#include <vector>

#include "bench/harness/bench.h"
#include "kernels/kernels.h"

namespace deltawire::bench {

struct ExportOptions {
  uint64_t mib = 256;  ///< the approximate size of each destination of place/KIND
  std::vector<size_t> threads = {1, 2};
  bool shm = false;  ///< run place/KIND between tmpfs files, like halves, not between huge pages
  bool cpu_time = false;  ///< measure CPU time, not wall-clock time, on a busy machine
};

/// A kind of copies in layout programs: strided copies between two dense buffers.
struct CopyCase {
  std::string name;
  std::vector<kernels::StridedCopy> copies;
  kernels::Convert convert;
  uint64_t src_bytes = 0;  ///< size of the source buffer, all of which the copies read
  uint64_t dst_bytes = 0;  ///< size of the destination buffer, all of which they write
};

/// Returns every kind, with a destination of about `bytes`.
std::vector<CopyCase> CopyCases(uint64_t bytes);

/// place/KIND: one kind of copy against memcpy of as many bytes with as many threads.
Status PlaceCases(const ExportOptions& options, Bench& bench);
/// plan/MODEL: plan and proof, one rank's programs, and the memory of both.
/// place/MODEL/LAYOUT: shards of all ranks to a half in tmpfs, against memcpy.
/// gather/MODEL/LAYOUT: a gather between two processes; the reference is bare TCP.
Status JobCases(const ExportOptions& options, Bench& bench);
/// ready/ranks=N: the time from ready to published when several ranks write every tensor. Chunks
/// are diffed as soon as all ranks have finished them; the reference is a sender with
/// --early off. It must be the last case, since gRPC's threads stay.
Status EarlyCases(Bench& bench);

}  // namespace deltawire::bench
