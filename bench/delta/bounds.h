// Entropy bounds: the bits that a tensor's changes cost under models that know nothing before and
// learn as they go (adaptive code lengths, Krichevsky-Trofimov, alpha 1/2), so learning is paid
// for. Owner: a ChangeCounter belongs to one tensor and one thread; its results may be added up.
// Cost: one pass, with an increment per element and a hash probe per change. Errors: none.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/base/bytes.h"
#include "kernels/kernels.h"

namespace deltawire::bench {

/// Bits that the KT estimator spends on a sequence with these counts, in any order: an alphabet of
/// counts.size() symbols, each of which starts at 1/2. 0 for no or one symbol.
double KtBits(std::span<const uint64_t> counts);

/// The same for a sequence of `elements` bits of which `changed` are 1.
double KtBits(uint64_t changed, uint64_t elements);

struct SplitBits {
  double positions = 0;
  double differences = 0;
  double total() const { return positions + differences; }
  void operator+=(const SplitBits& other) {
    positions += other.positions;
    differences += other.differences;
  }
};

/// Bits for all changes of a tensor; the sum over all tensors is the bound of a model.
struct Bounds {
  uint64_t elements = 0;
  uint64_t changed = 0;
  SplitBits iid;       ///< one model for all elements, which knows what differences occur
  SplitBits exponent;  ///< one per exponent of the old value, which must expect other differences
  SplitBits history;   ///< the same, per exponent, age bucket and direction of the last change
  void operator+=(const Bounds& other);
};

/// The exponent field of an element's bits, 0 where the format has none.
unsigned ExponentOf(kernels::ClassFunction f, uint64_t bits);

/// What the last deltas say of an element: 0 for no change in them, else 1 + 2 (row - 1) + up, with
/// rows 1..4 for ages 1, 2, 3..4, 5..8 and up = 1 if that change's difference was positive.
inline constexpr unsigned kHistoryContexts = 9;
uint8_t HistoryContext(unsigned age, bool up);

/// The element at p as a number, and a difference of two as a signed one. Widths 1, 2, 4, 8.
uint64_t LoadElement(const std::byte* p, unsigned width);
int64_t SignedDifference(uint64_t old_bits, uint64_t new_bits, unsigned width);

class ChangeCounter {
 public:
  ChangeCounter(kernels::ClassFunction function, unsigned width);

  /// `contexts`: one HistoryContext per element; if it is empty, all are 0.
  void Add(Bytes old_data, Bytes new_data, std::span<const uint8_t> contexts);
  Bounds Finish() const;

 private:
  using Differences = std::unordered_map<int64_t, uint64_t>;
  struct Context {
    uint64_t elements = 0;
    uint64_t changed = 0;
    Differences differences;
    void operator+=(const Context& other);
    /// `unseen`: the alphabet has one more symbol, for differences that did not occur.
    SplitBits Bits(bool unseen) const;
  };

  kernels::ClassFunction function_;
  unsigned width_;
  std::vector<Context> contexts_;  // exponent * kHistoryContexts + history
};

}  // namespace deltawire::bench
