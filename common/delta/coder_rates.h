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
  /// `work` as Coder::work counts it.
  void Add(double work, double seconds);
  /// Work per second of one thread; 0 before the first Add.
  double per_s() const;
  double total_seconds() const;
  /// Of calibration: the average stays, the sums are of real work.
  void ForgetTotals() { nanos_ = 0; }

 private:
  std::atomic<double> seconds_per_work_{0};
  std::atomic<uint64_t> nanos_{0};
};

class CoderRates {
 public:
  CoderRates();

  PerCodec<CoderRate> encode, decode;

  /// Payload bytes against the fast payload's.
  void AddSize(kernels::Codec codec, size_t fast, size_t other);
  /// The average of these sizes; 0 for fast.
  double ratio(kernels::Codec codec) const { return ratio_[codec]; }

  CoderSpeeds EncodeSpeeds(double threads) const;
  CoderSpeeds DecodeSpeeds(double threads) const;

  /// Codes one made-up chunk each way, so that the first choices are not blind.
  void Calibrate(const kernels::Backend& backend);

 private:
  PerCodec<std::atomic<double>> ratio_;
};

}  // namespace deltawire
