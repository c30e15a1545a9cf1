// How a pull uses the way to its peer: how many streams it opens, how much memory each of their
// sockets gets, and how much of that may wait unsent. All follow from what earlier pulls measured,
// which a LinkRecord keeps. Threads: one at a time uses a LinkRecord; the functions are pure,
// without sockets or a clock. Errors: none; what is not known is guessed as stated here.
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
/// On a way with at least this round trip, lost packets and windows limit a pull more than
/// processor time does.
inline constexpr double kFarSeconds = 5e-3;
inline constexpr uint16_t kFewestStreams = 4, kMostStreams = 32;

inline bool IsFar(const LinkFigures& link) { return link.round_trip_seconds >= kFarSeconds; }

/// The bytes under way at one time on a full way: its rate times its round trip. 0 if the round
/// trip is not known.
double BytesOnTheWay(const LinkFigures& link);

/// As many streams, from kFewestStreams to kMostStreams, as it takes for none to need more than
/// 512 KiB under way, or a higher rate than a core can move (1 GB/s). Half a MiB is an eighth of
/// what the kernel's defaults let a socket hold (tcp_wmem). The rest is for losses: a stream that
/// has lost packets holds what came after them for another round trip or two, and the other streams
/// carry its share meanwhile.
uint16_t ChooseStreams(const LinkFigures& link);

/// What SO_SNDBUF or SO_RCVBUF of each of `streams` should be set to, in bytes; 0: leave it to the
/// kernel's own tuning, which is better wherever it reaches far enough. `tuned`: the most that this
/// tuning gives (the third number of tcp_wmem or tcp_rmem); `asked`: the most that may be asked for
/// (net.core.wmem_max or rmem_max), of which the kernel gives twice as much.
uint64_t ChooseBuffer(const LinkFigures& link, uint16_t streams, uint64_t tuned, uint64_t asked);

/// TCP_NOTSENT_LOWAT of each of `streams` between hosts: as much as a stream sends in 50 ms, from
/// 128 KiB to 1 MiB; 128 KiB on a near way whose rate is not known. A longer queue would hold
/// chunks that a faster stream could have sent, and would stand before the bytes of pulls that go
/// first.
uint32_t ChooseUnsent(const LinkFigures& link, uint16_t streams);

/// What a pull's connections showed of their way.
struct LinkSample {
  LinkFigures link;    ///< bytes_per_s: of the best fifth of a second; 0: it had none
  double seconds = 0;  ///< from the first payload byte to the last
  uint16_t streams = 0;
};

/// What is believed of the way to one peer, from the pulls so far.
class LinkRecord {
 public:
  /// A call over the control connection took so long, which is a round trip or more. The least such
  /// time counts as the round trip until a pull's own connections have measured it.
  void Called(double seconds);
  /// A pull that was long enough to leave its slow start behind may raise the rate to its own, or
  /// lower it, by half the distance in logarithms. A shorter pull may only raise it.
  void Pulled(const LinkSample& sample);

  /// For the next pull.
  LinkFigures figures() const;

 private:
  double called_seconds_ = 0;
  double round_trip_seconds_ = 0;
  double bytes_per_s_ = 0;
  bool telling_ = false;  // some pull was long enough to tell the rate
};

}  // namespace deltawire::net
