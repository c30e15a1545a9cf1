// Estimated speed of the link to one receiver, from the durations of its pulls. An average, not a
// promise: it chooses a codec, and whether frames are copied. Owner: the Agent, one per receiver;
// pulls hold it by shared_ptr. Threads: any. Cost: constant. Errors: none.
#pragma once

#include <cstdint>

#include "common/base/sync.h"

namespace deltawire {

class LinkEstimate {
 public:
  /// Payload bytes per second over all streams of a pull; 0: not known yet.
  double bytes_per_s() const;

  /// A pull moved `bytes` in `seconds`. `coders_bound`: encoding or decoding took about as long, so
  /// the link may be faster than the pull was; the estimate then rises a little and never falls.
  void Add(uint64_t bytes, double seconds, bool coders_bound);

  /// The socket took a whole chunk of `bytes`; `late`: the socket took longer than a frame may keep
  /// a half from the trainer.
  void AddFrame(uint64_t bytes, bool late);
  /// Whether a frame may occupy its half for long: the last frames were late, or too few bytes have
  /// been sent since to tell a fast link from the buffers of `streams` sockets.
  bool slow(uint32_t streams) const;

 private:
  mutable Mutex mu_;
  double bytes_per_s_ = 0;
  uint64_t in_time_ = 0;  // bytes since the last late frame
};

}  // namespace deltawire
