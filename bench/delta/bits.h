// The cost of a tensor's changes in bits: entropy bounds, and the parts of payloads. Bounds are the
// code lengths of models that start without knowledge and adapt (Krichevsky-Trofimov, alpha 1/2),
// so learning is paid for. A ChangeCounter belongs to one tensor and one thread, and costs an
// increment per element and a hash probe per change. Errors are kUnimplemented for a payload of
// another format, and kDataLoss.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "kernels/kernels.h"

namespace deltawire::bench {

/// Returns the bits that the KT estimator spends on a sequence with these counts, in any order: an
/// alphabet of counts.size() symbols, each of which starts at 1/2. 0 for no or one symbol.
double KtBits(std::span<const uint64_t> counts);

struct SplitBits {
  double positions = 0;
  double differences = 0;
  double rest = 0;  ///< headers, tables, parameters, padding
  double total() const { return positions + differences + rest; }
};

/// The bits for all changes of a tensor. The sum over all tensors is the bound of a model.
struct Bounds {
  SplitBits iid;       ///< one model for all elements, which knows the differences that occur
  SplitBits exponent;  ///< one per exponent of the old value, which allows for other differences
  SplitBits history;   ///< the same, per exponent, age bucket and direction of the last change
};

/// The contexts of an element by its last change in the past deltas: 0 for no change, else 1 + 2
/// (row - 1) + up, with rows 1..4 for ages 1, 2, 3..4, 5..8 and up = 1 if that change's difference
/// was positive.
inline constexpr unsigned kHistoryContexts = 9;
uint8_t HistoryContext(unsigned age, bool up);

/// Returns a difference, modulo 2^(8 width), as a signed number.
int64_t Signed(uint64_t difference, unsigned width);

/// The number of elements and of changed ones, by the old value's exponent (0 if the format has
/// none) and the HistoryContext.
struct Tally {
  static constexpr size_t kExponents = 256;
  struct Count {
    uint64_t elements = 0, changed = 0;
    void operator+=(const Count& other) {
      elements += other.elements;
      changed += other.changed;
    }
  };
  Count& at(size_t exponent, size_t context) {
    return counts[exponent * kHistoryContexts + context];
  }
  const Count& at(size_t exponent, size_t context) const {
    return counts[exponent * kHistoryContexts + context];
  }
  std::vector<Count> counts = std::vector<Count>(kExponents * kHistoryContexts);
};

class ChangeCounter {
 public:
  ChangeCounter(kernels::ClassFunction function, unsigned width);

  /// Counts these bytes, and returns their own tally. `contexts` has one HistoryContext per
  /// element; if it is empty, all are 0.
  Tally Add(Bytes old_data, Bytes new_data, std::span<const uint8_t> contexts);
  Bounds Finish() const;

 private:
  using Differences = std::unordered_map<int64_t, uint64_t>;

  kernels::ClassFunction function_;
  unsigned width_;
  Tally tally_;
  std::vector<Differences> differences_;  // parallel to the tally's counts
};

/// Splits a fast payload of `raw_bytes` of data. Raw blocks count as differences.
StatusOr<SplitBits> SplitFast(Bytes payload, size_t raw_bytes, unsigned width);

/// Splits a tight payload. An arithmetic-coded number has no parts, so positions have their cost by
/// the payload's own parameters, and differences are the remainder (with the coder's rounding).
/// `tally` is the chunk's. `history` tells whether the payload was coded with past deltas.
StatusOr<SplitBits> SplitTight(Bytes payload, const Tally& tally, bool history);

}  // namespace deltawire::bench
