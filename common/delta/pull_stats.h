// What a pull moved and took, as both of its ends count it, and a status shows it.
// Plain values; threads: any. Times in seconds, bytes as counted on the wire without headers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/format.h"

namespace deltawire {

/// Sums per form in which chunks travel (kernels::kFormNames).
struct FormCounts {
  static constexpr size_t kRaw = 0;  ///< whole chunks; the other forms are codecs' numbers
  std::array<uint64_t, kernels::kForms> chunks{}, bytes{};
  FormCounts& operator+=(const FormCounts& other) {
    for (size_t i = 0; i < kernels::kForms; ++i) {
      chunks[i] += other.chunks[i];
      bytes[i] += other.bytes[i];
    }
    return *this;
  }
  friend bool operator==(const FormCounts&, const FormCounts&) = default;
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
  /// At the receiver. Messages carry no more of it than the chunks, so a sender has no bytes here.
  FormCounts forms;
  friend bool operator==(const PullStats&, const PullStats&) = default;
};

}  // namespace deltawire
