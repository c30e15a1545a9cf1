// The cases of the suite `loopback`. Each measures through its own kind of daemons and adds its
// rows. REQUIRES: no other thread runs, since processes are forked. Errors are the daemons' own,
// and a receiver that does not hold the trainer's bytes at the end.
#pragma once

#include <string>

#include "bench/harness/bench.h"

namespace deltawire::bench {

struct LoopbackOptions {
  std::string size = "0.6b";
  std::string model;  ///< a directory; empty: a synthetic model of `size`
  size_t streams = 4;
  size_t threads = 0;  ///< of the trainer and of the references; 0: one per core
};

/// Runs all cases but scale/N.
Status ModelCases(const LoopbackOptions& options, Bench& bench);

/// Runs scale/N: registration, publishes, a first commit and a restart of a model of many tiny
/// tensors.
Status ScaleCases(Bench& bench);

}  // namespace deltawire::bench
