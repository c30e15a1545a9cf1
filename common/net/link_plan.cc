#include "common/net/link_plan.h"

#include <algorithm>
#include <cmath>

namespace deltawire::net {
namespace {

constexpr double kBytesOfStream = 512 << 10;  // in-flight bytes of one stream, at most
constexpr double kRateOfStream = 1e9;         // per second: what a core can move through one socket
// About half of a socket's memory holds payload, and the kernel's structures take the rest. It must
// hold twice the in-flight bytes, since retransmitted bytes stay for a second round trip.
constexpr double kMemoryOverBytes = 4;
constexpr double kUnsentSeconds = 0.05;
constexpr uint32_t kUsualUnsent = 128 << 10;
constexpr double kLeastUnsent = 128 << 10, kMostUnsent = 1 << 20;
// A pull of this duration has left its slow start behind.
constexpr double kTellingSeconds = 0.5, kTellingRoundTrips = 10;

double RateOf(const LinkFigures& link) {
  return link.bytes_per_s > 0 ? link.bytes_per_s : kUsualLink;
}

}  // namespace

double BytesOnTheWay(const LinkFigures& link) { return RateOf(link) * link.round_trip_seconds; }

uint16_t ChooseStreams(const LinkFigures& link) {
  const double by_window = BytesOnTheWay(link) / kBytesOfStream;
  const double by_core = link.bytes_per_s / kRateOfStream;
  return static_cast<uint16_t>(
      std::clamp<double>(std::ceil(std::max(by_window, by_core)), kFewestStreams, kMostStreams));
}

uint64_t ChooseBuffer(const LinkFigures& link, uint16_t streams, uint64_t tuned, uint64_t asked) {
  const double wanted = kMemoryOverBytes * BytesOnTheWay(link) / std::max<uint16_t>(1, streams);
  if (wanted <= static_cast<double>(tuned) || 2 * asked <= tuned) return 0;
  return std::min(asked, static_cast<uint64_t>(wanted / 2));
}

uint32_t ChooseUnsent(const LinkFigures& link, uint16_t streams) {
  if (!IsFar(link) && link.bytes_per_s <= 0) return kUsualUnsent;
  const double wanted = RateOf(link) / std::max<uint16_t>(1, streams) * kUnsentSeconds;
  return static_cast<uint32_t>(std::clamp(wanted, kLeastUnsent, kMostUnsent));
}

void LinkRecord::Called(double seconds) {
  if (seconds <= 0) return;
  called_seconds_ = called_seconds_ == 0 ? seconds : std::min(called_seconds_, seconds);
}

void LinkRecord::Pulled(const LinkSample& sample) {
  if (sample.link.round_trip_seconds > 0) round_trip_seconds_ = sample.link.round_trip_seconds;
  const double seen = sample.link.bytes_per_s;
  if (seen <= 0) return;
  const double needed = std::max(kTellingSeconds, kTellingRoundTrips * round_trip_seconds_);
  if (seen >= figures().bytes_per_s) {
    bytes_per_s_ = seen;
  } else if (sample.seconds >= needed) {
    bytes_per_s_ = telling_ ? std::sqrt(bytes_per_s_ * seen) : seen;
  }
  telling_ |= sample.seconds >= needed;
}

LinkFigures LinkRecord::figures() const {
  const double trip = round_trip_seconds_ > 0 ? round_trip_seconds_ : called_seconds_;
  const bool at_least = !telling_ && bytes_per_s_ < kUsualLink;
  return {.round_trip_seconds = trip, .bytes_per_s = at_least ? 0 : bytes_per_s_};
}

}  // namespace deltawire::net
