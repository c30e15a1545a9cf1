// A chunk, or a run of bytes within one, that the trainer's GPU has diffed (docs/lifecycle.md,
// "Diffed by the trainer"): its place in the half begins with the payload of the change.
#pragma once

#include <cstdint>

namespace deltawire {

struct DiffedChunk {
  uint32_t chunk = 0;
  uint32_t offset = 0;        ///< of the run, in bytes from the chunk's first
  uint32_t length = 0;        ///< of the run: the chunk's bytes, if the rank has all of them
  uint32_t bytes = 0;         ///< of the payload, which is of the run alone; 0: it did not change
  uint64_t digest_after = 0;  ///< of the run's new bytes as a chunk of their own, from the GPU
};

}  // namespace deltawire
