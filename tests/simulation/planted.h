// Bugs that the simulation must find, planted from outside: the sources have no code for them.
// Owner: RunHistory, which sets one for a history. Threads: one. Cost: none. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tests/simulation/history.h"

namespace deltawire::simulation {

Plant planted();
void SetPlanted(Plant plant);
/// How many chunks the history's model has; for kEndAbandoned.
void SetModelChunks(uint32_t chunks);

/// With kSkipDigest planted, the kernels' digests say of an arriving whole chunk that its bytes are
/// right. Set by the transport around its calls of the sink.
struct ArrivingChunk {
  uint64_t expected = 0;
  size_t bytes = 0;
  uint64_t sum = 0;  ///< of the digests of its parts so far
};
void SetArriving(ArrivingChunk* chunk);

}  // namespace deltawire::simulation
