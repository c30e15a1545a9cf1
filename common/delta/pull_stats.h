// The counts and times of one pull, at either end and in the status. Times are in seconds, bytes as
// on the wire without headers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/base/fields.h"
#include "kernels/format.h"

namespace deltawire {

/// Sums per form in which chunks travel: index 0 for whole chunks, otherwise the codec's number
/// (docs/delta_format.md).
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
  double seconds = 0;           ///< from pull opened to committed
  double transfer_seconds = 0;  ///< from pull opened to last frame received
  double apply_seconds = 0;     ///< from last frame received to committed
  uint64_t repaired_chunks = 0;
  uint64_t refused_chunks = 0;  ///< tight payloads that did not fit the receiver's bytes or history
  uint64_t history_chunks = 0;  ///< tight payloads that used past deltas
  uint32_t streams = 0;         ///< of all agents together
  double round_trip_seconds = 0;  ///< the least of all streams; 0: unknown
  double best_bytes_per_s = 0;    ///< over the best 200 ms; 0: the pull was shorter
  /// The part of the pull before its version was published, which is where the other times begin.
  double ahead_seconds = 0;
  uint64_t ahead_bytes = 0;  ///< those of payload_bytes that had arrived by then
  /// Counted by the receiver. Its messages carry only the chunk counts, so at a sender bytes are 0.
  FormCounts forms;
  friend bool operator==(const PullStats&, const PullStats&) = default;
};

/// Calls f(name, field) for each field of the API's PullStats but the forms; see proto/fields.h.
template <FieldsOf<PullStats> T>
void ForEachField(T& stats, const auto& f) {
#define DW_FIELD(name) f(#name, stats.name);
  DW_FIELD(chunks_full)
  DW_FIELD(chunks_delta)
  DW_FIELD(chunks_unchanged)
  DW_FIELD(payload_bytes)
  DW_FIELD(seconds)
  DW_FIELD(transfer_seconds)
  DW_FIELD(apply_seconds)
  DW_FIELD(repaired_chunks)
  DW_FIELD(refused_chunks)
  DW_FIELD(history_chunks)
  DW_FIELD(streams)
  DW_FIELD(round_trip_seconds)
  DW_FIELD(best_bytes_per_s)
  DW_FIELD(ahead_seconds)
  DW_FIELD(ahead_bytes)
#undef DW_FIELD
}

}  // namespace deltawire
