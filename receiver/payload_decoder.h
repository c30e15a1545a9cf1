// Turns a chunk's payload, whatever its codec, into the fast one that is checked, kept and applied.
// Owner: a PullSink; buffer, rates and history outlive it. Threads: any, for different chunks.
// Cost: fast nothing; other codecs some passes over the chunk and megabytes of the thread's
// scratch.
#pragma once

#include <memory>
#include <span>

#include "common/delta/coder_rates.h"
#include "common/delta/delta_log.h"
#include "receiver/buffer.h"

namespace deltawire::receiver {

class PayloadDecoder {
 public:
  /// `history`: the deltas that led to what the buffer's chunks were when the pull began.
  PayloadDecoder(Buffer& buffer, CoderRates& rates, LogView history);

  struct Payload {
    kernels::Codec codec = kernels::Codec::kFast;
    unsigned depth = 0;  ///< of history that it needed
    bool fits = true;    ///< false: not for these bytes (Coder::needs_old), or this history
    std::unique_ptr<std::byte[]> decoded;  ///< the fast payload, unless it was one
    size_t bytes = 0;
  };
  /// `before`: valid fast payloads that are still to be applied to the chunk, oldest first.
  /// `first`: the chunk's first frame of the pull, so that the history is that of its bytes.
  /// kDataLoss when the payload cannot be one.
  StatusOr<Payload> ToFast(uint32_t chunk, Bytes payload, std::span<const Bytes> before,
                           bool first) const;

 private:
  Bytes OldBytes(uint32_t chunk, std::span<const Bytes> before) const;

  Buffer& buffer_;
  const kernels::Backend& backend_;
  CoderRates& rates_;
  const LogView history_;
};

}  // namespace deltawire::receiver
