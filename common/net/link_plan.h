// How a pull uses the way to its peer: how many streams, how much memory for each of their sockets,
// and how much of it may wait there unsent, from what was measured of that way. What a way is
// taken for is kept by a LinkRecord, of one thread at a time. All pure: no sockets, no clock.
// Errors: none; what is not known is guessed as stated here.
#pragma once

#include <cstdint>

namespace deltawire::net {

/// What is known of the way between two daemons.
struct LinkFigures {
  double round_trip_seconds = 0;  ///< without queues: the least that was seen; 0: not known
  double bytes_per_s = 0;         ///< of all streams of a pull together; 0: not known
  friend bool operator==(const LinkFigures&, const LinkFigures&) = default;
};

/// A way whose rate is not known is taken for one of 1 Gbit/s.
inline constexpr double kUsualLink = 125e6;
/// From this round trip on lost packets and windows count more than processor time.
inline constexpr double kFarSeconds = 5e-3;
inline constexpr uint16_t kFewestStreams = 4, kMostStreams = 32;

inline bool IsFar(const LinkFigures& link) { return link.round_trip_seconds >= kFarSeconds; }

/// What is on its way while the way is full: its rate times its round trip. 0 without a round trip.
double BytesOnTheWay(const LinkFigures& link);

/// So many that no stream needs more than 512 KiB on its way, nor more than a core can move
/// (1 GB/s); kFewestStreams to kMostStreams. Half a MiB is an eighth of what the kernel's defaults
/// let a socket hold (tcp_wmem): a stream that has lost packets holds what came after them for
/// another round trip or two, and the others take over its share of the rate meanwhile.
uint16_t ChooseStreams(const LinkFigures& link);

/// What SO_SNDBUF or SO_RCVBUF of each of `streams` should be set to, in bytes; 0: leave it to the
/// kernel's own tuning, which is better wherever it reaches far enough. `tuned`: the most that it
/// reaches (the third number of tcp_wmem or tcp_rmem); `asked`: the most that may be asked for
/// (net.core.wmem_max or rmem_max), of which the kernel takes twice as much.
uint64_t ChooseBuffer(const LinkFigures& link, uint16_t streams, uint64_t tuned, uint64_t asked);

/// TCP_NOTSENT_LOWAT of each of `streams` between hosts: as much as it sends in 50 ms, 128 KiB to 1
/// MiB; 128 KiB on a near way whose rate is not known. More would keep chunks in the queue of a
/// slow stream that a faster one could have sent, and before the bytes of pulls that go first.
uint32_t ChooseUnsent(const LinkFigures& link, uint16_t streams);

/// What a pull's connections showed of their way.
struct LinkSample {
  LinkFigures link;    ///< bytes_per_s: of the best fifth of a second; 0: it had none
  double seconds = 0;  ///< from the first payload byte to the last
  uint16_t streams = 0;
};

/// What the way to one peer is taken for, from the pulls so far.
class LinkRecord {
 public:
  /// A call over the control connection took so long, which is a round trip or more. Counts until a
  /// pull's own connections have shown it.
  void Called(double seconds);
  /// A pull whose slow start was over, by its length, says how fast the way is, up or down (half
  /// the way, in logarithms); a shorter one only that it is at least so fast.
  void Pulled(const LinkSample& sample);

  /// For the next pull.
  LinkFigures figures() const;

 private:
  double called_seconds_ = 0;
  double round_trip_seconds_ = 0;
  double bytes_per_s_ = 0;
  bool telling_ = false;  // bytes_per_s_ comes from a pull that was long enough
};

}  // namespace deltawire::net
