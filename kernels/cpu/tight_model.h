// The tight codec's parameters: their choice from counts (tests/support/delta_encoder.py), and
// their bits in the payload (docs/delta_format.md, "tight"). Read returns false for bits that the
// format forbids.
#pragma once

#include <cstdint>

#include "kernels/bits.h"
#include "kernels/cpu/tight_lanes.h"
#include "kernels/kernels.h"

namespace deltawire::kernels {

struct TightParameters {
  unsigned lane_bits = 0;
  unsigned base = 0;
  unsigned rows = 0;  ///< the highest row
  uint16_t mask[kHistoryRows] = {};
  uint8_t rate[kHistoryRows][kClasses] = {};  ///< row 0: rate codes 1..88; others: levels
  uint8_t same[kHistoryRows][kClasses] = {};  ///< levels; unused in row 0
  uint8_t q1[kQ1] = {}, q2[kQ2] = {};
  uint8_t m = 0;

  void Write(BitWriter& bits) const;
  /// Reads everything but lane_bits and base, which are in the payload's head. REQUIRES: rows is
  /// set.
  bool Read(BitReader& bits);
  /// Returns the hazard of an element, in units of 2^-20 octaves; 0 if it cannot change.
  uint32_t Weight(unsigned row, unsigned cls) const;
  /// Sets the inputs for coding elements of `bits` bits.
  void FillModel(unsigned bits, LaneModel* model) const;
};

/// The counts over a chunk from which an encoder chooses the parameters.
struct TightCounts {
  struct Share {
    uint32_t yes = 0, of = 0;
    void Count(bool y) {
      yes += y;
      ++of;
    }
  };
  Share rate[kHistoryRows][kClasses];  ///< of all elements, the changed ones
  Share same[kHistoryRows][kClasses];  ///< of all changes, those in the last one's direction
  Share q1[kQ1], q2[kQ2], m;
};

/// Returns the format's `base`. exponents[E] is how many of the `changed` elements have exponent E.
unsigned ChooseBase(const uint32_t (&exponents)[256], uint32_t changed);
unsigned ChooseLaneBits(uint64_t changed);
/// Estimates the number of elements of a class that has `found` in the counted sample.
constexpr uint32_t EstimatedCount(uint32_t found) {
  return found * kCountedEach + kCountedEach / 2;
}
/// Sets every parameter but lane_bits and base. REQUIRES: rows is set.
void ChooseParameters(const TightCounts& counts, TightParameters* parameters);

}  // namespace deltawire::kernels
