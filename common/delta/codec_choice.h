// Chooses the codec in which a chunk's delta travels: the one that should be committed first.
// Coding, sending and decoding of a pull's chunks overlap, so a chunk costs what its slowest stage
// takes. Pure functions of measured speeds (coder_rates.h, sender/agent/link_estimate.h).
#pragma once

#include <cstddef>

#include "kernels/kernels.h"

namespace deltawire {

/// The work of coding one chunk, in a unit that each codec's time is proportional to. Dense passes
/// over all bytes of the chunk. Tight pays for each change and a little for each element; the
/// factor 1/1024 was measured.
inline double TightWork(size_t chunk_bytes, size_t fast_bytes) {
  return static_cast<double>(fast_bytes) + static_cast<double>(chunk_bytes) / 1024;
}
inline double DenseWork(size_t chunk_bytes) { return static_cast<double>(chunk_bytes); }

/// Work per second of all coding threads together; 0: not known.
struct CoderSpeeds {
  double tight = 0;
  double dense = 0;
};

struct CodecChoiceInputs {
  size_t chunk_bytes = 0;
  size_t fast_bytes = 0;
  double link_bytes_per_s = 0;  ///< of all streams of the pull; 0: not known
  CoderSpeeds encode, decode;
  double tight_ratio = 0;  ///< expected size relative to fast's; 0: tight is not available
  double dense_ratio = 0;
  bool tight_made = false;  ///< already encoded for another receiver, so encoding is free
  bool dense_made = false;
};

/// Dense is tried only if the fast payload has at least this share of the chunk's bytes: below it,
/// gaps are cheaper than planes of zeros.
inline constexpr double kDenseFromShare = 0.25;

/// Returns kFast while the link's speed is not known: it suits a fast link, and the first transfer
/// then measures the link.
kernels::Codec ChooseCodec(const CodecChoiceInputs& in);

}  // namespace deltawire
