// What one pull moved and took. Times in seconds, bytes as counted on the wire without headers.
#pragma once

#include <cstdint>

namespace deltawire::receiver {

struct PullStats {
  uint64_t chunks_full = 0;
  uint64_t chunks_delta = 0;
  uint64_t chunks_unchanged = 0;
  uint64_t payload_bytes = 0;
  double seconds = 0;           ///< pull opened -> committed
  double transfer_seconds = 0;  ///< pull opened -> last frame in
  double apply_seconds = 0;     ///< last frame in -> committed
  uint64_t repaired_chunks = 0;
};

}  // namespace deltawire::receiver
