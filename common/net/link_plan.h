// The plan for a pull's link to its peer: the number of streams, the memory of each socket, and how
// much of that may wait unsent. It follows from the measurements of earlier pulls, which a
// LinkRecord keeps, and from the defaults stated here. One thread at a time uses a LinkRecord.
#pragma once

#include <cstdint>

namespace deltawire::net {

/// An estimate of the link between two daemons.
struct LinkFigures {
  double round_trip_seconds = 0;  ///< the least seen, so without queues; 0: unknown
  double bytes_per_s = 0;         ///< of all streams of a pull together; 0: unknown
  friend bool operator==(const LinkFigures&, const LinkFigures&) = default;
};

/// The assumed rate of a link that has not been measured: 1 Gbit/s.
inline constexpr double kUsualLink = 125e6;
/// From this round trip on, lost packets and windows limit a pull more than processor time does.
inline constexpr double kFarSeconds = 5e-3;
inline constexpr uint16_t kFewestStreams = 4, kMostStreams = 32;

inline bool IsFar(const LinkFigures& link) { return link.round_trip_seconds >= kFarSeconds; }

/// Returns the bandwidth-delay product: the in-flight bytes of a full link. 0 if the round trip is
/// unknown.
double BytesOnTheWay(const LinkFigures& link);

/// Returns a number of streams, from kFewestStreams to kMostStreams, such that none needs more than
/// 512 KiB in flight, or more than the 1 GB/s that a core can move. 512 KiB is an eighth of the
/// kernel's default limit for a socket (tcp_wmem). The rest is for losses: a stream that has lost
/// packets holds all later ones for another round trip or two, and the other streams carry its
/// share meanwhile.
uint16_t ChooseStreams(const LinkFigures& link);

/// Returns SO_SNDBUF or SO_RCVBUF for each of `streams`, in bytes; 0: leave it to the kernel's own
/// tuning, which is better if it reaches far enough. `tuned` is the most that this tuning gives
/// (the third number of tcp_wmem or tcp_rmem). `asked` is the most that a program may set
/// (net.core.wmem_max or rmem_max); the kernel gives twice as much.
uint64_t ChooseBuffer(const LinkFigures& link, uint16_t streams, uint64_t tuned, uint64_t asked);

/// Returns TCP_NOTSENT_LOWAT for each of `streams` between hosts: a stream's bytes of 50 ms, from
/// 128 KiB to 1 MiB; 128 KiB on a near link of unknown rate. A longer queue would hold chunks that
/// a faster stream could have sent, and would delay the bytes of pulls with priority.
uint32_t ChooseUnsent(const LinkFigures& link, uint16_t streams);

/// A pull's measurements of its link.
struct LinkSample {
  LinkFigures link;    ///< bytes_per_s: in the best 200 ms; 0: it had none
  double seconds = 0;  ///< from the first payload byte to the last
  uint16_t streams = 0;
};

/// An estimate of one peer's bandwidth and round trip, from past pulls.
class LinkRecord {
 public:
  /// Records the duration of a call over the control connection, which is a round trip or more. The
  /// least such time is the estimate until a pull's own connections have measured the round trip.
  void Called(double seconds);
  /// A pull long enough to leave its slow start behind may raise the rate to its own, or lower it
  /// by half the distance in logarithms. A shorter pull may only raise it.
  void Pulled(const LinkSample& sample);

  LinkFigures figures() const;

 private:
  double called_seconds_ = 0;
  double round_trip_seconds_ = 0;
  double bytes_per_s_ = 0;
  bool telling_ = false;  // some pull was long enough to measure the rate
};

}  // namespace deltawire::net
