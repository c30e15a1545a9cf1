// How fast the way to one receiver is, from what its pulls took.
// Owner: the Agent, one per receiver, for as long as it runs; pulls hold it by shared_ptr.
// Threads: any. An average, not a promise: it chooses a codec, and whether frames are copied.
#pragma once

#include <cstdint>

#include "common/base/sync.h"

namespace deltawire::sender {

class LinkEstimate {
 public:
  /// Payload bytes per second over all streams of a pull; 0: not known yet.
  double bytes_per_s() const;

  /// A pull moved `bytes` in `seconds`. `coders_bound`: encoding or decoding took about as long, so
  /// the link may be faster than that: then the estimate rises, a little each time, but never
  /// falls.
  void Add(uint64_t bytes, double seconds, bool coders_bound);

  /// The socket took a whole chunk of `bytes`; `late`: not within the time that one may keep a half
  /// from the trainer.
  void AddFrame(uint64_t bytes, bool late);
  /// A frame may keep its half for long: one was late, or too little has been sent since (or ever)
  /// to tell a fast link from `streams` sockets' buffers.
  bool slow(uint32_t streams) const;

 private:
  mutable Mutex mu_;
  double bytes_per_s_ = 0;
  uint64_t in_time_ = 0;  // bytes since the last late frame
};

}  // namespace deltawire::sender
