// A chunk, or runs of bytes within one, that the trainer's GPU has diffed (docs/lifecycle.md,
// "Diffed by the trainer"). Several runs are a rank's columns of the chunk's rows. Put one behind
// the other they are diffed as one, and begin with the payload of the change.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "common/base/bytes.h"

namespace deltawire {

struct DiffedChunk {
  uint32_t chunk = 0;
  uint32_t offset = 0;        ///< of the first run, in bytes from the chunk's first
  uint32_t length = 0;        ///< of all runs: the chunk's bytes, if the rank has all of them
  uint32_t bytes = 0;         ///< of the payload, which is of the runs alone; 0: no change
  uint64_t digest_after = 0;  ///< of the runs' new bytes as a chunk of their own, from the GPU
  uint32_t run = 0;           ///< bytes of each run; 0: there is one
  uint32_t step = 0;          ///< from one run's first byte to the next one's

  uint32_t run_bytes() const { return run == 0 ? length : run; }
  /// Returns the end of the last run. REQUIRES: run_bytes() divides the length.
  uint64_t end() const { return offset + uint64_t{length / run_bytes() - 1} * step + run_bytes(); }
};

/// Copies the first bytes of a chunk's runs to `to`, which has room for so many as there are.
inline void GatherRuns(const DiffedChunk& place, Bytes chunk, MutableBytes to) {
  for (uint64_t at = 0, from = place.offset; at < to.size(); from += place.step) {
    const size_t bytes = std::min<size_t>(place.run_bytes(), to.size() - at);
    std::memcpy(to.data() + at, chunk.data() + from, bytes);
    at += bytes;
  }
}
/// Copies `from` to the first bytes of the runs.
inline void ScatterRuns(const DiffedChunk& place, Bytes from, MutableBytes chunk) {
  for (uint64_t at = 0, to = place.offset; at < from.size(); to += place.step) {
    const size_t bytes = std::min<size_t>(place.run_bytes(), from.size() - at);
    std::memcpy(chunk.data() + to, from.data() + at, bytes);
    at += bytes;
  }
}

}  // namespace deltawire
