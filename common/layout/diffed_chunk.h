// A chunk that the trainer's GPU has diffed (docs/lifecycle.md, "Diffed by the trainer"): its place
// in the half begins with the payload of the change.
#pragma once

#include <cstdint>

namespace deltawire {

struct DiffedChunk {
  uint32_t chunk = 0;
  uint32_t bytes = 0;         ///< of the payload; 0: the chunk did not change
  uint64_t digest_after = 0;  ///< of the new bytes, taken on the GPU
};

}  // namespace deltawire
