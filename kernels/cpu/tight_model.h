// The tight codec's parameters: their choice from counts, and their bits in the payload.
// Plain values; no allocation; thread-safe. Errors: Read is false for bits that the format refuses.
// The bits: docs/delta_format.md, "tight"; the choice: tests/support/delta_encoder.py.
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
  /// Reads everything but lane_bits and base, which the payload's head has. REQUIRES: rows is set.
  bool Read(BitReader& bits);
  /// The hazard of an element, in units of 2^-20 octaves; 0 if it cannot change.
  uint32_t Weight(unsigned row, unsigned cls) const;
  /// What coding elements of `bits` bits needs of these.
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
  Share rate[kHistoryRows][kClasses];  ///< of all elements, those that changed
  Share same[kHistoryRows][kClasses];  ///< of all changes, those in the last change's direction
  Share q1[kQ1], q2[kQ2], m;
};

/// The format's `base`. exponents[E] is how many of the `changed` elements have exponent E.
unsigned ChooseBase(const uint32_t (&exponents)[256], uint32_t changed);
unsigned ChooseLaneBits(uint64_t changed);
/// The number of elements of a class, of which the counted part has `found`.
constexpr uint32_t EstimatedCount(uint32_t found) {
  return found * kCountedEach + kCountedEach / 2;
}
/// Sets every parameter but lane_bits and base. REQUIRES: rows is set.
void ChooseParameters(const TightCounts& counts, TightParameters* parameters);

}  // namespace deltawire::kernels
