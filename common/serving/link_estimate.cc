#include "common/serving/link_estimate.h"

#include <algorithm>
#include <cmath>

namespace deltawire {
namespace {

// A pull of fewer bytes measures round trips rather than the link.
constexpr uint64_t kTelling = 64 << 10;
// A pull of so many bytes or seconds moves the estimate half the way to the measured speed.
constexpr double kTellingBytes = 4 << 20;
constexpr double kTellingSeconds = 0.1;
constexpr double kRise = 1.1;
// Faster than any link: without this limit, a rise after every pull would end at infinity.
constexpr double kMost = 1e12;
// Bytes that the two socket buffers of a stream may take at once.
constexpr uint64_t kSocketBuffers = 12 << 20;

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
    bytes_per_s_ = std::min(kMost, std::max(bytes_per_s_ * kRise, seen));
  } else if (bytes_per_s_ == 0) {
    bytes_per_s_ = seen;
  } else {
    const double telling =
        std::max(static_cast<double>(bytes) / kTellingBytes, seconds / kTellingSeconds);
    // Averages logarithms, since links differ by orders of magnitude in both directions.
    bytes_per_s_ *= std::pow(seen / bytes_per_s_, 0.5 * std::min(1.0, telling));
  }
}

void LinkEstimate::AddFrame(uint64_t bytes, bool late) {
  std::lock_guard lock(mu_);
  in_time_ = late ? 0 : in_time_ + bytes;
}

bool LinkEstimate::slow(uint32_t streams) const {
  std::lock_guard lock(mu_);
  return in_time_ < streams * kSocketBuffers;
}

}  // namespace deltawire
