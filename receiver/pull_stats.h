// What one pull moved and took. Times in seconds, bytes as counted on the wire without headers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace deltawire::receiver {

/// Sums per form in which chunks arrived: index 0 is whole chunks, the others are the codecs'
/// numbers (docs/delta_format.md).
struct FormCounts {
  static constexpr size_t kForms = 4;
  static constexpr const char* kNames[kForms] = {"raw", "fast", "tight", "dense"};
  std::array<uint64_t, kForms> chunks{}, bytes{};
  FormCounts& operator+=(const FormCounts& other) {
    for (size_t i = 0; i < kForms; ++i) {
      chunks[i] += other.chunks[i];
      bytes[i] += other.bytes[i];
    }
    return *this;
  }
};

struct PullStats {
  uint64_t chunks_full = 0;
  uint64_t chunks_delta = 0;
  uint64_t chunks_unchanged = 0;
  uint64_t payload_bytes = 0;
  double seconds = 0;           ///< pull opened -> committed
  double transfer_seconds = 0;  ///< pull opened -> last frame in
  double apply_seconds = 0;     ///< last frame in -> committed
  uint64_t repaired_chunks = 0;
  uint64_t refused_chunks = 0;  ///< tight payloads that did not fit what is here
  uint64_t history_chunks = 0;  ///< tight payloads that looked back to past deltas
  FormCounts forms;
};

}  // namespace deltawire::receiver
