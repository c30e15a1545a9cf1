// How fast this process codes chunks, and how small they become: running averages of real work that
// start from a short calibration, and the sums that the metrics show.
// Owner: the daemon; outlives every user. Threads: any thread may call any method.
// Cost: a few atomics per chunk; Calibrate takes some ten milliseconds.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/delta/codec_choice.h"
#include "kernels/kernels.h"

namespace deltawire {

/// An exponential average of the measured speeds, and the total time.
class CoderRate {
 public:
  /// `work` is in the unit of the codec's Coder::work (coders.h).
  void Add(double work, double seconds);
  /// Work per second of one thread; 0 before the first Add.
  double per_s() const;
  double total_seconds() const;
  /// After calibration: keeps the average, but clears the sums, which count only real work.
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

  /// Encodes and decodes a made-up chunk, so that the first choices rest on measured speeds.
  void Calibrate(const kernels::Backend& backend);

 private:
  PerCodec<std::atomic<double>> ratio_;
};

}  // namespace deltawire
