// The tight codec's parameters: how they are chosen from counts, and their bits in the payload.
// Plain values; no allocation; thread-safe. Errors: Read is false for what the format refuses.
// Source of every rule: docs/delta_format.md, "tight".
#pragma once

#include <cstdint>

#include "kernels/cpu/bits.h"
#include "kernels/kernels.h"

namespace deltawire::kernels {

struct TightParameters {
  unsigned group_bits = 0;
  unsigned base = 0;
  unsigned rows = 0;  ///< the highest row
  uint16_t mask[kHistoryRows] = {};
  uint8_t rate[kHistoryRows][kClasses] = {};  ///< row 0: rate codes 1..88; others: levels
  uint8_t same[kHistoryRows][kClasses] = {};  ///< levels; unused in row 0
  uint8_t q1[kQ1] = {}, q2[kQ2] = {};
  uint8_t m = 0;

  void Write(BitWriter& bits) const;
  /// Everything but group_bits and base, which stand before. REQUIRES: rows is set.
  bool Read(BitReader& bits);
  /// Hazard of an element, in units of 2^-20 octaves; 0 if it cannot change.
  uint32_t Weight(unsigned row, unsigned cls) const;
};

/// What an encoder counts over a chunk before it chooses.
struct TightCounts {
  struct Share {
    uint32_t yes = 0, of = 0;
    void Count(bool y) {
      yes += y;
      ++of;
    }
  };
  Share rate[kHistoryRows][kClasses];  ///< elements that changed, of all
  Share same[kHistoryRows][kClasses];  ///< changes in the direction of the last one
  Share q1[kQ1], q2[kQ2], m;
};

/// The smallest exponent that does not share its class with lower ones, from how many changed
/// elements have each.
unsigned ChooseBase(const uint32_t (&exponents)[256], uint32_t changed);
unsigned ChooseGroupBits(uint64_t changed, uint64_t blocks);
/// Fills in all but group_bits and base. REQUIRES: rows is set.
void ChooseParameters(const TightCounts& counts, TightParameters* parameters);

}  // namespace deltawire::kernels
