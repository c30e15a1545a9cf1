// The sums of what one pull has sent. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "common/delta/pull_stats.h"
#include "kernels/format.h"

namespace deltawire {

class PullTally {
 public:
  void Add(size_t form, size_t bytes) {
    bytes_ += bytes;
    ++form_chunks_[form];
    form_bytes_[form] += bytes;
  }
  /// Counts the bytes that belong to an incoming version.
  void AddAhead(size_t bytes) { bytes_ahead_ += bytes; }
  /// Adds the receiver's decoding time, on all its threads, by the speeds that it reported.
  void AddDecode(double seconds) { decode_seconds_ += seconds; }

  uint64_t bytes() const { return bytes_; }
  uint64_t bytes_ahead() const { return bytes_ahead_; }
  double decode_seconds() const { return decode_seconds_; }
  FormCounts forms() const {
    FormCounts counts;
    for (size_t i = 0; i < kernels::kForms; ++i) {
      counts.chunks[i] = form_chunks_[i];
      counts.bytes[i] = form_bytes_[i];
    }
    return counts;
  }

 private:
  std::atomic<uint64_t> bytes_{0}, bytes_ahead_{0};
  std::atomic<double> decode_seconds_{0};
  std::array<std::atomic<uint64_t>, kernels::kForms> form_chunks_{}, form_bytes_{};
};

}  // namespace deltawire
