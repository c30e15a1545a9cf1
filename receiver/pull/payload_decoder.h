// A decoder that turns a chunk's payload of any codec into the fast payload, which is checked, kept
// and applied. It does nothing for fast; for tight and dense it makes a few passes over the chunk,
// and takes megabytes of scratch memory per thread. A PullSink owns it. It may be called from any
// thread, for different chunks. Errors name chunk and tensor.
#pragma once

#include <memory>
#include <span>

#include "common/delta/coder_rates.h"
#include "common/delta/delta_log.h"
#include "receiver/buffer/buffer.h"

namespace deltawire::receiver {

class PayloadDecoder {
 public:
  /// `history` has the deltas that led to the buffer's state when the pull began.
  PayloadDecoder(const Buffer& buffer, CoderRates& rates, LogView history);

  struct Payload {
    kernels::Codec codec = kernels::Codec::kFast;
    unsigned depth = 0;  ///< deltas of the history that it needed
    bool fits = true;    ///< false: a tight payload for other bytes or another history
    std::unique_ptr<std::byte[]> decoded;  ///< the fast payload; null if the payload was fast
    size_t bytes = 0;
  };
  /// `before` has the valid fast payloads that will be applied to the chunk first, oldest first.
  /// `first` says that this is the chunk's first frame of the pull: only then does the history
  /// belong to the chunk's bytes. kDataLoss when the payload is malformed.
  StatusOr<Payload> ToFast(uint32_t chunk, Bytes payload, std::span<const Bytes> before,
                           bool first) const;

 private:
  Bytes OldBytes(uint32_t chunk, std::span<const Bytes> before) const;

  const Buffer& buffer_;
  const kernels::Backend& backend_;
  CoderRates& rates_;
  const LogView history_;
};

}  // namespace deltawire::receiver
