// The tight codec's working data of one block: every element's context, and sums of weights that
// let a search pass over many elements at a time. Lives in the caller's scratch. Not thread-safe.
// Cost: 0.1 ns per element, and 3 ns per change in the history.
// Errors: Prepare is false when a delta of the history is malformed.
#pragma once

#include "kernels/cpu/tight.h"
#include "kernels/cpu/tight_model.h"

namespace deltawire::kernels {

/// An element's context: class in bits 0-3, row in bits 4-6, direction (1: down) in bit 7.
constexpr unsigned ClassOf(uint8_t context) { return context & 15; }
constexpr unsigned RowOf(uint8_t context) { return context >> 4 & 7; }
constexpr bool WentDown(uint8_t context) { return context >> 7 != 0; }

/// A context that no element has; its weight is 0.
inline constexpr uint8_t kNoWeight = 0x7f;

struct BlockWork {
  uint8_t contexts[kBlockElements + 8];
  uint64_t before8[kBlockElements / 8 + 2];  ///< before8[i]: sum of weights of elements before 8 i
  uint16_t at[kBlockElements];               ///< places of this delta's changes
  uint64_t d[kBlockElements];                ///< their differences
  uint16_t past_at[kBlockElements];          ///< the same for one delta of the history
  uint64_t past_d[kBlockElements];           ///< also BlockOps::pack's dense scratch
};

/// A chunk's data that encoding and decoding share.
class TightChunk {
 public:
  /// REQUIRES: `history` has at least `depth` deltas, all valid; scratch has kTightScratchBytes.
  TightChunk(const BlockOps& ops, Bytes old_data, unsigned width, ClassFunction function,
             const History& history, unsigned depth, MutableBytes scratch);

  size_t elements() const { return elements_; }
  size_t blocks() const { return BlockCount(elements_); }
  size_t BlockElements(size_t block) const { return BlockSize(elements_, block); }
  unsigned width() const { return width_; }
  BlockWork& work() { return *work_; }
  const BlockOps& ops() const { return ops_; }
  /// The exponent of the old value of element i of a block.
  unsigned Exponent(size_t block, size_t i) const;
  uint32_t WeightOf(uint8_t context) const { return weights_[context & 0x7f]; }

  uint32_t WeightAt(size_t i) const { return WeightOf(work_->contexts[i]); }

  void SetBase(unsigned base) { base_ = base; }
  void SetWeights(const TightParameters& parameters);
  /// Computes a block's contexts and, once the weights are set, the sums. Adds the block's elements
  /// to `counts` if it is not null.
  bool Prepare(size_t block, TightCounts* counts);
  /// Sum of the weights of the prepared block's elements before `i`, i <= its elements.
  uint64_t Before(size_t i) const;
  struct Found {
    size_t at;
    uint64_t before;  ///< Before(at)
  };
  /// The first element from `from` on with Before(element + 1) > sum; the block's number of
  /// elements if there is none. REQUIRES: Before(from) <= sum.
  Found Find(size_t from, uint64_t sum) const;

 private:
  bool Overlay(size_t block, TightCounts* counts);
  const uint8_t* BlockData(size_t block) const {
    return Ptr(old_data_) + block * kBlockElements * width_;
  }

  const BlockOps& ops_;
  Bytes old_data_;
  unsigned width_;
  ClassFunction function_;
  size_t elements_;
  unsigned base_ = 0;
  unsigned depth_;
  bool weighted_ = false;
  PayloadView past_[kMaxHistory];
  bool changed_in_[kMaxHistory] = {};
  uint32_t weights_[128] = {};     ///< by context without direction
  uint32_t plain_[kClasses] = {};  ///< the weights of row 0
  size_t prepared_ = 0;            ///< number of elements of the prepared block
  BlockWork* work_;
};

}  // namespace deltawire::kernels
