// Bugs that the simulation must find, put in from outside: nothing in the sources knows of them.
// Owner: RunHistory sets one for a history. Threads: one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tests/simulation/history.h"

namespace deltawire::simulation {

Plant planted();
void SetPlanted(Plant plant);

/// What the kernels' digests say while a whole chunk arrives, with kSkipDigest planted: that its
/// bytes are right. Set by the transport around its calls of the sink.
struct ArrivingChunk {
  uint64_t expected = 0;
  size_t bytes = 0;
  uint64_t sum = 0;  ///< of the parts so far
};
void SetArriving(ArrivingChunk* chunk);

}  // namespace deltawire::simulation
