// Measures a TCP link between two machines: its round trip, and what some number of connections
// carry together. One machine listens, the other asks. The bytes are zeros; no weights, no secrets.
// Owner: the command. Threads: a listener has one per connection, a measurement one per stream.
// Cost: the link, for the seconds asked for. Errors: name the address.
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

/// A request: kLinkMagic, the kind, and for how many milliseconds to send (4 bytes, little-endian).
constexpr std::string_view kLinkMagic = "dwlink1\n";
enum class LinkAsk : uint8_t { kEcho = 1, kSend = 2 };
constexpr std::chrono::milliseconds kLongestSend{60000};

/// Answers measurements until it is destroyed.
class LinkListener {
 public:
  struct Limits {
    /// More than two rounds', since the connections of the last round may still be closing.
    size_t connections = 160;
    std::chrono::milliseconds first_word{5000};  ///< for the request to come
  };
  static StatusOr<std::unique_ptr<LinkListener>> Listen(const std::string& address, Limits limits);
  ~LinkListener();

  uint16_t port() const;
  uint64_t bytes_sent() const;
  /// The number of connections that were refused: above the limit, or without a valid request.
  uint64_t refused() const;

 private:
  struct Impl;
  explicit LinkListener(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Seconds of the fastest of `times` answers to one byte.
StatusOr<double> MeasureRoundTrip(const std::string& to, int times,
                                  std::chrono::milliseconds timeout);

struct LinkRate {
  size_t streams = 0;
  double bytes_per_s = 0;
};
/// What `streams` connections receive together in `seconds`, after the first fifth of that time, in
/// which TCP finds the link's speed; if nothing comes after that, in all of the time.
StatusOr<LinkRate> MeasureRate(const std::string& to, size_t streams, double seconds,
                               std::chrono::milliseconds timeout);

/// The fewest streams that reach 95 % of the best rate. REQUIRES: not empty.
const LinkRate& FewestStreams(std::span<const LinkRate> rates);

}  // namespace deltawire::cli
