// A meter for a TCP link between two machines: its round trip, and the bandwidth of several
// connections together. One machine listens, the other measures. The bytes are zeros, never
// weights. A listener has one thread per connection, a measurement one per stream.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace deltawire::cli {

/// A request: kLinkMagic, the kind, and the sending time in ms (4 bytes, little-endian).
constexpr std::string_view kLinkMagic = "dwlink1\n";
enum class LinkAsk : uint8_t { kEcho = 1, kSend = 2 };
constexpr std::chrono::milliseconds kLongestSend{60000};

/// Answers measurements until it is destroyed.
class LinkListener {
 public:
  struct Limits {
    /// More than two rounds need, because the connections of the last round may still be closing.
    size_t connections = 160;
    std::chrono::milliseconds first_word{5000};  ///< the time limit for the request
  };
  static StatusOr<std::unique_ptr<LinkListener>> Listen(const std::string& address, Limits limits);
  ~LinkListener();

  uint16_t port() const;
  uint64_t bytes_sent() const;
  /// Returns the number of refused connections: above the limit, or without a valid request.
  uint64_t refused() const;

 private:
  struct Impl;
  explicit LinkListener(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Returns the seconds of the fastest of `times` one-byte round trips.
StatusOr<double> MeasureRoundTrip(const std::string& to, int times,
                                  std::chrono::milliseconds timeout);

struct LinkRate {
  size_t streams = 0;
  double bytes_per_s = 0;
};
/// Measures the joint rate of `streams` connections for `seconds`. The first fifth of the time, in
/// which TCP finds the link's speed, does not count unless nothing arrives after it.
StatusOr<LinkRate> MeasureRate(const std::string& to, size_t streams, double seconds,
                               std::chrono::milliseconds timeout);

/// Returns the rate with the fewest streams that reaches 95 % of the best. REQUIRES: not empty.
const LinkRate& FewestStreams(std::span<const LinkRate> rates);

}  // namespace deltawire::cli
