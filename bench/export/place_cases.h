// Throughput of Backend::place and place_convert by kind of copy, beside memcpy of as many bytes
// with as many threads, measured in turn. Owns its buffers; one run at a time.
// Errors: memory that is not there; with `check`, a case whose bytes are not the oracle's.
#pragma once

#include <string>
#include <vector>

#include "bench/harness/report.h"
#include "bench/harness/sample.h"
#include "common/base/status.h"

namespace deltawire::bench {

struct PlaceOptions {
  uint64_t bytes = uint64_t{256} << 20;  ///< of each destination, about
  uint64_t piece_bytes = uint64_t{2} << 20;
  std::vector<size_t> threads = {1, 2};
  Rounds rounds;
  std::string only;       ///< cases whose name has this in it
  bool shm = false;       ///< buffers in tmpfs, as halves are, not in huge pages
  bool cpu_time = false;  ///< of the threads instead of the clock's: for machines with other work
  bool check = false;     ///< compare with the scalar backend first (slow)
};

Status PlaceCases(const PlaceOptions& options, Report& report);

}  // namespace deltawire::bench
