// The speeds at which this process codes chunks, and the size ratios: running averages of real work
// that start from a short calibration, and sums for the metrics. The daemon owns it. Thread-safe, a
// few atomics per chunk. Calibrate takes some ten milliseconds.
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
  /// Returns the work per second of one thread; 0 before the first Add.
  double per_s() const;
  double total_seconds() const;
  /// Clears the sums after calibration, since they count only real work. Keeps the average.
  void ForgetTotals() { nanos_ = 0; }

 private:
  std::atomic<double> seconds_per_work_{0};
  std::atomic<uint64_t> nanos_{0};
};

class CoderRates {
 public:
  CoderRates();

  PerCodec<CoderRate> encode, decode;

  /// Adds a payload's size in bytes, and the size of the fast payload for the same chunk.
  void AddSize(kernels::Codec codec, size_t fast, size_t other);
  /// Returns the average ratio of these sizes; 0 for fast.
  double ratio(kernels::Codec codec) const { return ratio_[codec]; }

  CoderSpeeds EncodeSpeeds(double threads) const;
  CoderSpeeds DecodeSpeeds(double threads) const;

  /// Encodes and decodes a synthetic chunk, so that the first choices rest on measured speeds.
  void Calibrate(const kernels::Backend& backend);

 private:
  PerCodec<std::atomic<double>> ratio_;
};

}  // namespace deltawire
