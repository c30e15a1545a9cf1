// How fast the way to one receiver is, from what its pulls took.
// Owner: the Agent, one per receiver, for as long as it runs; pulls hold it by shared_ptr.
// Threads: any. An average, not a promise: it only chooses a codec.
#pragma once

#include <cstdint>
#include <mutex>

namespace deltawire::sender {

class LinkEstimate {
 public:
  /// Payload bytes per second over all streams of a pull; 0: not known yet.
  double bytes_per_s() const;

  /// A pull moved `bytes` in `seconds`. `coders_bound`: encoding or decoding took about as long, so
  /// the link may be faster than that: then the estimate rises, a little each time, but never
  /// falls.
  void Add(uint64_t bytes, double seconds, bool coders_bound);

 private:
  mutable std::mutex mu_;
  double bytes_per_s_ = 0;
};

}  // namespace deltawire::sender
