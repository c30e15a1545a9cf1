// One block on its way through the tight codec: every element's context and the sums of weights
// that let a search pass 64 elements at a time. Lives in the caller's scratch. Not thread-safe.
// Cost: a tenth of a nanosecond an element, 3 ns a change in the history. Errors: Prepare is false
// when a delta of the history is malformed.
#pragma once

#include "kernels/cpu/tight.h"
#include "kernels/cpu/tight_model.h"

namespace deltawire::kernels {

/// Context of an element: class in bits 0-3, row in bits 4-6, direction (1: down) in bit 7.
constexpr unsigned ClassOf(uint8_t context) { return context & 15; }
constexpr unsigned RowOf(uint8_t context) { return context >> 4 & 7; }
constexpr bool WentDown(uint8_t context) { return context >> 7 != 0; }

/// A context that no element has, and that weighs nothing.
inline constexpr uint8_t kNoWeight = 0x7f;

struct BlockWork {
  uint8_t contexts[kBlockElements + 8];
  uint64_t before8[kBlockElements / 8 + 2];  ///< [i]: weights of all elements before 8 i
  uint16_t at[kBlockElements];               ///< this delta's changes
  uint64_t d[kBlockElements];
  uint16_t past_at[kBlockElements];  ///< those of one delta of the history
  uint64_t past_d[kBlockElements];   ///< also pack's dense scratch
};

/// What both directions know of a chunk.
class TightChunk {
 public:
  /// REQUIRES: at least `depth` deltas, valid ones; scratch of kTightScratchBytes.
  TightChunk(const BlockOps& ops, Bytes old_data, unsigned width, ClassFunction function,
             const History& history, unsigned depth, MutableBytes scratch);

  size_t elements() const { return elements_; }
  size_t blocks() const { return BlockCount(elements_); }
  size_t BlockElements(size_t block) const { return BlockSize(elements_, block); }
  unsigned width() const { return width_; }
  BlockWork& work() { return *work_; }
  const BlockOps& ops() const { return ops_; }
  /// Exponent of the old value of element i of a block.
  unsigned Exponent(size_t block, size_t i) const;
  uint32_t WeightOf(uint8_t context) const { return weights_[context & 0x7f]; }

  uint32_t WeightAt(size_t i) const { return WeightOf(work_->contexts[i]); }

  void SetBase(unsigned base) { base_ = base; }
  void SetWeights(const TightParameters& parameters);
  /// Contexts of a block; with them the sums, once the weights are set. The counts, if any, grow by
  /// the block's elements.
  bool Prepare(size_t block, TightCounts* counts);
  /// Sum of the weights of the prepared block's elements before `i`, i <= its elements.
  uint64_t Before(size_t i) const;
  struct Found {
    size_t at;
    uint64_t before;  ///< Before(at)
  };
  /// The first element from `from` on with Before(element + 1) > sum; the block's elements if none.
  /// REQUIRES: Before(from) <= sum.
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
  uint32_t plain_[kClasses] = {};  ///< those of row 0
  size_t prepared_ = 0;            ///< elements of the prepared block
  BlockWork* work_;
};

}  // namespace deltawire::kernels
