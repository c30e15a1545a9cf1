// The order and the pace in which a scrub compares a model's chunks: in turn, in batches, at a
// limited rate. Not thread-safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "common/layout/chunks.h"

namespace deltawire {

class ScrubWalk {
 public:
  /// The least pause after a batch that holds the whole model. At the rate alone, a scrub of a few
  /// bytes, or of none, would never pause and keep a core busy.
  static constexpr std::chrono::milliseconds kShortest{500};

  /// Chunks are compared in batches of some `batch_bytes`, since each pause costs a wake-up.
  explicit ScrubWalk(uint64_t batch_bytes) : batch_bytes_(batch_bytes) {}

  /// Calls `compare(chunk)`, which returns the bytes that it read, for the next batch of chunks.
  /// Returns the pause that keeps the whole walk at `bytes_per_s`, which is > 0.
  template <typename Compare>
  std::chrono::nanoseconds Next(const ChunkTable& chunks, uint64_t bytes_per_s, Compare&& compare) {
    uint64_t bytes = 0;
    uint32_t taken = 0;
    for (; taken < chunks.size() && bytes < batch_bytes_; ++taken) {
      bytes += compare(next_);
      next_ = (next_ + 1) % chunks.size();
    }
    const auto pause =
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(
            static_cast<double>(bytes) / static_cast<double>(bytes_per_s)));
    return taken < chunks.size() ? pause : std::max<std::chrono::nanoseconds>(pause, kShortest);
  }

 private:
  const uint64_t batch_bytes_;
  uint32_t next_ = 0;
};

}  // namespace deltawire
