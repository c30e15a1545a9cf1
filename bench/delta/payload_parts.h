// Splits the bits of a payload that the kernels made into those for positions, for differences and
// for the rest. It reads payloads as the kernels do (docs/delta_format.md).
// Pure functions, thread-safe. Errors: kUnimplemented for another format, kDataLoss beyond bounds.
#pragma once

#include <span>

#include "bench/delta/bounds.h"
#include "common/base/status.h"
#include "kernels/kernels.h"

namespace deltawire::bench {

/// In bits; the sum is the payload's.
struct PayloadParts : SplitBits {
  double rest = 0;  ///< headers, tables, parameters, padding
  double total() const { return SplitBits::total() + rest; }
};

/// A fast payload of `raw_bytes` of data. Raw blocks count as differences.
StatusOr<PayloadParts> SplitFast(Bytes payload, size_t raw_bytes, unsigned width);

/// A tight payload. An arithmetic-coded number has no parts, so positions count what they cost by
/// the payload's own parameters, and differences are the remainder (with the coder's rounding).
/// `contexts`: one HistoryContext (bounds.h) per element where the payload has a depth.
/// REQUIRES: new_data is what old_data becomes; both of the same size.
StatusOr<PayloadParts> SplitTight(Bytes payload, Bytes old_data, Bytes new_data, unsigned width,
                                  std::span<const uint8_t> contexts);

}  // namespace deltawire::bench
