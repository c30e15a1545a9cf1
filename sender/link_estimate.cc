#include "sender/link_estimate.h"

#include <algorithm>

namespace deltawire::sender {
namespace {

// A pull of less is mostly round trips.
constexpr uint64_t kTelling = 64 << 10;
// Half of the average is replaced by a pull of this size or more.
constexpr double kHalfWeight = 4 << 20;
constexpr double kRise = 1.1;

}  // namespace

double LinkEstimate::bytes_per_s() const {
  std::lock_guard lock(mu_);
  return bytes_per_s_;
}

void LinkEstimate::Add(uint64_t bytes, double seconds, bool coders_bound) {
  if (bytes < kTelling || seconds <= 0) return;
  const double seen = static_cast<double>(bytes) / seconds;
  std::lock_guard lock(mu_);
  if (coders_bound) {
    bytes_per_s_ = std::max(bytes_per_s_ * kRise, seen);
  } else if (bytes_per_s_ == 0) {
    bytes_per_s_ = seen;
  } else {
    const double weight = 0.5 * std::min(1.0, static_cast<double>(bytes) / kHalfWeight);
    bytes_per_s_ += weight * (seen - bytes_per_s_);
  }
}

}  // namespace deltawire::sender
