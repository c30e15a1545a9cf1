// How fast this process codes chunks, and how small they become: running averages of real work,
// begun with a short calibration, and the sums that the metrics show.
// Owner: the daemon; outlives all that code. Threads: all methods from any. Cost: a few atomics per
// chunk; Calibrate some milliseconds.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/delta/codec_choice.h"
#include "kernels/kernels.h"

namespace deltawire {

/// An exponential average of what was measured, and its sums.
class CoderRate {
 public:
  void Add(uint64_t chunk_bytes, double seconds);
  /// Chunk bytes per second of one thread; 0 before the first Add.
  double bytes_per_s() const;
  double total_seconds() const;
  /// Of calibration: the average stays, the sums are of real work.
  void ForgetTotals() { nanos_ = 0; }

 private:
  std::atomic<double> seconds_per_byte_{0};
  std::atomic<uint64_t> nanos_{0};
};

class CoderRates {
 public:
  CoderRate tight_encode, tight_decode, dense_encode, dense_decode;

  /// Payload bytes against the fast payload's.
  void AddTightSize(size_t fast, size_t tight) { Average(tight_ratio_, fast, tight); }
  void AddDenseSize(size_t fast, size_t dense) { Average(dense_ratio_, fast, dense); }
  double tight_ratio() const { return tight_ratio_; }
  double dense_ratio() const { return dense_ratio_; }

  CoderSpeeds EncodeSpeeds(double threads) const;
  CoderSpeeds DecodeSpeeds(double threads) const;

  /// Codes one made-up chunk each way, so that the first choices are not blind.
  void Calibrate(const kernels::Backend& backend);

 private:
  static void Average(std::atomic<double>& ratio, size_t fast, size_t other);

  // Until measured: what a training step's deltas showed on average (docs/delta_format.md names no
  // figure; these only decide the first choices).
  std::atomic<double> tight_ratio_{0.65};
  std::atomic<double> dense_ratio_{0.9};
};

}  // namespace deltawire
