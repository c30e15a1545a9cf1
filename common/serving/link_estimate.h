// The estimated speed of the link to one receiver, from the durations of its pulls. It decides the
// codec, the sockets' memory, and whether frames are copied. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/checked_mutex.h"
#include "common/base/sync.h"
#include "common/net/tcp_facts.h"

namespace deltawire {

/// A link as its sender sees it, for displays.
struct LinkView {
  double bytes_per_s = 0;          ///< LinkEstimate::bytes_per_s
  double round_trip_seconds = 0;   ///< 0: not known
  double sent_again_ratio = 0;     ///< retransmitted bytes of the last pulls, of all their bytes
  std::string congestion_control;  ///< of the last stream
};

class LinkEstimate {
 public:
  /// Payload bytes per second over all streams of a pull; 0: not known yet.
  double bytes_per_s() const;

  /// Adds a pull that moved `bytes` in `seconds`. `coders_bound`: encoding or decoding took about
  /// as long, so the link may be faster. The estimate then rises a little and never falls.
  void Add(uint64_t bytes, double seconds, bool coders_bound);

  /// Adds the kernel's figures of a stream that has ended.
  void AddFacts(const net::TcpFacts& facts);
  LinkView view() const;

  /// Adds a whole chunk that the socket has taken. `late`: that took longer than a frame may keep a
  /// half from the trainer.
  void AddFrame(uint64_t bytes, bool late);
  /// Whether a frame may occupy its half for long: after a late frame, until more bytes were sent
  /// in time than the buffers of `streams` sockets hold.
  bool slow(uint32_t streams) const;

 private:
  mutable CheckedMutex mu_;
  double bytes_per_s_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t in_time_ ABSL_GUARDED_BY(mu_) = 0;  // bytes since the last late frame
  double round_trip_seconds_ ABSL_GUARDED_BY(mu_) = 0;
  // Bytes; older ones count less.
  double sent_ ABSL_GUARDED_BY(mu_) = 0;
  double sent_again_ ABSL_GUARDED_BY(mu_) = 0;
  std::string congestion_control_ ABSL_GUARDED_BY(mu_);
};

}  // namespace deltawire
