// Which codec a chunk's delta travels in: the one with the shortest time from ready to committed.
// Coding, sending and decoding of a pull's chunks overlap, so a chunk costs what its slowest stage
// takes. Pure functions of measured speeds (coder_rates.h, sender/agent/link_estimate.h).
#pragma once

#include <cstddef>

#include "kernels/kernels.h"

namespace deltawire {

/// What a codec's cost goes with, of one chunk: dense passes over all its bytes; tight pays for
/// each change, and a little (so much, as measured) for each element.
inline double TightWork(size_t chunk_bytes, size_t fast_bytes) {
  return static_cast<double>(fast_bytes) + static_cast<double>(chunk_bytes) / 1024;
}
inline double DenseWork(size_t chunk_bytes) { return static_cast<double>(chunk_bytes); }

/// Work per second of all threads that code at once; 0: not known.
struct CoderSpeeds {
  double tight = 0;
  double dense = 0;
};

struct CodecChoiceInputs {
  size_t chunk_bytes = 0;
  size_t fast_bytes = 0;
  double link_bytes_per_s = 0;  ///< of all streams of the pull; 0: not known
  CoderSpeeds encode, decode;
  double tight_ratio = 0;  ///< expected size over fast's; 0: tight cannot be had
  double dense_ratio = 0;
  bool tight_made = false;  ///< there already, for another receiver: encoding is free
  bool dense_made = false;
};

/// Below this share of the chunk, dense is not tried: gaps are cheaper than planes of zeros.
inline constexpr double kDenseFromShare = 0.25;

/// kFast while the link is not known: it is the codec that a fast link wants, and a first transfer
/// tells.
kernels::Codec ChooseCodec(const CodecChoiceInputs& in);

}  // namespace deltawire
