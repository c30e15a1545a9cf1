#include "common/serving/link_estimate.h"

#include <algorithm>
#include <cmath>

namespace deltawire {
namespace {

// A pull of fewer bytes measures round trips rather than the link.
constexpr uint64_t kTelling = 64 << 10;
// A pull of this size or duration moves the estimate half the way to the measured speed.
constexpr double kTellingBytes = 4 << 20;
constexpr double kTellingSeconds = 0.1;
constexpr double kRise = 1.1;
// Faster than any link: without this limit, a rise after every pull would end at infinity.
constexpr double kMost = 1e12;
// After this many bytes, earlier ones count half.
constexpr double kSentRemembered = 64 << 20;
// Bytes in the two socket buffers of a stream, at most.
constexpr uint64_t kSocketBuffers = 12 << 20;

}  // namespace

double LinkEstimate::bytes_per_s() const {
  MutexLock lock(mu_);
  return bytes_per_s_;
}

void LinkEstimate::Add(uint64_t bytes, double seconds, bool coders_bound) {
  if (bytes < kTelling || seconds <= 0) return;
  const double seen = static_cast<double>(bytes) / seconds;
  MutexLock lock(mu_);
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

void LinkEstimate::AddFacts(const net::TcpFacts& facts) {
  if (facts.sent_bytes == 0) return;
  MutexLock lock(mu_);
  if (facts.round_trip_seconds > 0) round_trip_seconds_ = facts.round_trip_seconds;
  sent_ += static_cast<double>(facts.sent_bytes);
  sent_again_ += static_cast<double>(facts.sent_again_bytes);
  if (sent_ > kSentRemembered) {
    sent_ /= 2;
    sent_again_ /= 2;
  }
  congestion_control_ = facts.congestion_control;
}

LinkView LinkEstimate::view() const {
  MutexLock lock(mu_);
  return {.bytes_per_s = bytes_per_s_,
          .round_trip_seconds = round_trip_seconds_,
          .sent_again_ratio = sent_ > 0 ? sent_again_ / sent_ : 0,
          .congestion_control = congestion_control_};
}

void LinkEstimate::AddFrame(uint64_t bytes, bool late) {
  MutexLock lock(mu_);
  in_time_ = late ? 0 : in_time_ + bytes;
}

bool LinkEstimate::slow(uint32_t streams) const {
  MutexLock lock(mu_);
  return in_time_ < streams * kSocketBuffers;
}

}  // namespace deltawire
