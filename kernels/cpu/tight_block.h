// The tight codec's working data of one block, in the caller's scratch: every element's context,
// and sums of weights that let a search skip many elements at a time. Costs 0.05 ns per element,
// and 3 ns per change in the history. Prepare returns false when a delta of the history is
// malformed.
#pragma once

#include <optional>

#include "kernels/cpu/tight.h"
#include "kernels/cpu/tight_model.h"

namespace deltawire::kernels {

/// The number of sums, and contexts, after those of the last element that a search may read.
inline constexpr size_t kSearchAhead = 16;

struct BlockWork {
  struct Elements {
    alignas(64) uint8_t contexts[kBlockElements + kSumStep];
    alignas(64) uint64_t before[kBlockElements / kSumStep + 1 + kSearchAhead];
  };
  Elements elements[2];                     ///< of one block, and of the next one
  uint16_t at[kBlockElements];              ///< places of this delta's changes
  uint64_t d[kBlockElements];               ///< their differences
  uint16_t past_at[kBlockElements];         ///< places of the changes in one delta of the history
  uint64_t past_down[kBlockElements / 64];  ///< their signs; bit set: negative
  uint64_t dense[kBlockElements];           ///< BlockOps::pack's scratch
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
  unsigned depth() const { return depth_; }
  BlockWork& work() { return *work_; }
  /// Returns every element's context in the prepared block.
  const uint8_t* contexts() const { return now().contexts; }
  const BlockOps& ops() const { return ops_; }
  const LaneModel& model() const { return model_; }
  LaneBlock view() { return {now().contexts, now().before, prepared_, next_, &ahead_}; }
  ClassFunction function() const { return function_; }
  const uint8_t* BlockData(size_t block) const {
    return Ptr(old_data_) + block * kBlockElements * width_;
  }

  void SetBase(unsigned base) { base_ = base; }
  void SetParameters(const TightParameters& parameters);
  /// Counts the elements' classes in row 0 of `counts`. As the format says, it may count a sample
  /// of the elements only.
  void CountClasses(TightCounts* counts);
  /// Computes a block's contexts and, once the parameters are set, the sums. Adds the block's
  /// elements to `counts` if it is not null. Call it in the blocks' order, from the first.
  /// REQUIRES: the parameters are set or there are counts, not both.
  bool Prepare(size_t block, TightCounts* counts);

 private:
  BlockWork::Elements& now() const { return work_->elements[current_]; }
  /// Computes the classes of some of a block's elements and, once the parameters are set, the sums.
  void PrepareElements(size_t block, size_t first, size_t count, BlockWork::Elements* to,
                       uint32_t (*found)[kClasses]);
  /// Prepares some more elements of the next block. ahead_ calls it with `this` as `chunk`.
  static void WorkAhead(void* chunk, size_t elements);
  /// Sets the contexts of the elements that the history changed.
  bool Overlay(size_t block, TightCounts* counts);
  /// Moves the elements of the last unpacked delta to this row.
  void SetRows(uint32_t changed, unsigned row, TightCounts* counts);
  template <typename Moved>
  void SetRows(uint32_t changed, unsigned row, Moved moved);

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
  std::optional<BlockCursor> past_block_[kMaxHistory];  ///< at the next block to be prepared
  LaneModel model_;
  ClassWeights plain_;
  uint64_t total_ = 0;      ///< sum of the weights of the block's prepared elements
  size_t prepared_ = 0;     ///< number of elements of the prepared block
  Bytes next_;              ///< the old bytes of the next block
  unsigned current_ = 0;    ///< index in work_->elements of the prepared block
  size_t ahead_block_ = 0;  ///< the block in preparation in the other one
  AheadWork ahead_;         ///< the remaining work on that block
  BlockWork* work_;
};

}  // namespace deltawire::kernels
