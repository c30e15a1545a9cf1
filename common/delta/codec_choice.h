// The choice of a chunk's codec: the one with which the receiver should commit first. Coding,
// sending and decoding of a pull's chunks overlap, so a chunk costs the time of its slowest stage.
// Speeds are measured (coder_rates.h, common/serving/link_estimate.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/delta/coders.h"

namespace deltawire {

/// Work (Coder::work) per second of all threads that code at once; 0: unknown.
using CoderSpeeds = PerCodec<double>;

struct CodecChoiceInputs {
  size_t chunk_bytes = 0;
  size_t fast_bytes = 0;
  double link_bytes_per_s = 0;  ///< of all streams of the pull; 0: unknown
  CoderSpeeds encode, decode;
  PerCodec<double> ratio;  ///< expected size over fast's; 0: codec unavailable
  PerCodec<bool> made;     ///< the payload exists already, for another receiver: it costs nothing
};

/// Returns the number of threads that code for one pull at once. Its streams share the I/O threads,
/// one per core. `cores` 0: unknown.
inline uint32_t CodingThreads(uint32_t cores, uint32_t streams) {
  return std::min(std::max(uint32_t{1}, cores), streams);
}

/// Returns whether a pull's coders took about as long as its longest stream. Then the pull tells
/// little about the link. `coding_seconds` is the sum over the sender's streams, on `threads`
/// threads; `decode_seconds` is the sum over the receiver's threads.
bool CodersBound(double coding_seconds, double threads, double decode_seconds,
                 double longest_seconds);

/// Returns kFast while the link's rate is unknown: a fast link wants that codec, and the first
/// transfer measures the rate.
kernels::Codec ChooseCodec(const CodecChoiceInputs& in);

}  // namespace deltawire
