// How fast this process codes chunks, and how small they become: running averages of real work that
// start from a short calibration, and the sums that the metrics show.
// Owner: the daemon; outlives every user. Threads: any thread may call any method.
// Cost: a few atomics per chunk; Calibrate takes some milliseconds.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/delta/codec_choice.h"
#include "kernels/kernels.h"

namespace deltawire {

/// An exponential average of the measured speeds, and the total time.
class CoderRate {
 public:
  /// `work` is in the unit of TightWork or DenseWork (codec_choice.h).
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
  CoderRate tight_encode, tight_decode, dense_encode, dense_decode;

  /// Records a payload's bytes in relation to the fast payload's.
  void AddTightSize(size_t fast, size_t tight) { Average(tight_ratio_, fast, tight); }
  void AddDenseSize(size_t fast, size_t dense) { Average(dense_ratio_, fast, dense); }
  double tight_ratio() const { return tight_ratio_; }
  double dense_ratio() const { return dense_ratio_; }

  CoderSpeeds EncodeSpeeds(double threads) const;
  CoderSpeeds DecodeSpeeds(double threads) const;

  /// Encodes and decodes a made-up chunk, so that the first choices rest on measured speeds.
  void Calibrate(const kernels::Backend& backend);

 private:
  static void Average(std::atomic<double>& ratio, size_t fast, size_t other);

  // The initial values are averages measured on a training step's deltas. They affect only the
  // first choices, until payloads have been made here.
  std::atomic<double> tight_ratio_{0.65};
  std::atomic<double> dense_ratio_{0.9};
};

}  // namespace deltawire
