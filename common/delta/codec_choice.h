// Chooses the codec of a chunk's delta: the one with which the receiver should commit first.
// Coding, sending and decoding of a pull's chunks overlap, so a chunk costs what its slowest stage
// takes. Pure functions of measured speeds (coder_rates.h, common/serving/link_estimate.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/delta/coders.h"

namespace deltawire {

/// Work (Coder::work) per second of all threads that code at once; 0: not known.
using CoderSpeeds = PerCodec<double>;

struct CodecChoiceInputs {
  size_t chunk_bytes = 0;
  size_t fast_bytes = 0;
  double link_bytes_per_s = 0;  ///< of all streams of the pull; 0: not known
  CoderSpeeds encode, decode;
  PerCodec<double> ratio;  ///< expected size over fast's; 0: the codec cannot be had
  PerCodec<bool> made;     ///< the payload exists already, for another receiver: it costs nothing
};

/// Threads that code for one pull at once: its streams share the I/O threads, of which there is one
/// for each core. `cores` 0: not known.
inline uint32_t CodingThreads(uint32_t cores, uint32_t streams) {
  return std::min(std::max(uint32_t{1}, cores), streams);
}

/// Whether a pull's coders took about as long as its longest stream: then the pull says little
/// about the link. `coding_seconds` is the sum over the sender's streams, which `threads` made;
/// `decode_seconds` is of all the receiver's threads together.
bool CodersBound(double coding_seconds, double threads, double decode_seconds,
                 double longest_seconds);

/// kFast while the link's rate is not known: a fast link wants that codec, and the first transfer
/// measures the rate.
kernels::Codec ChooseCodec(const CodecChoiceInputs& in);

}  // namespace deltawire
