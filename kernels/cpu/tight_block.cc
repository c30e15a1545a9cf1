#include "kernels/cpu/tight_block.h"

#include <memory>

namespace deltawire::kernels {

static_assert(sizeof(BlockWork) + alignof(BlockWork) <= kTightScratchBytes);

TightChunk::TightChunk(const BlockOps& ops, Bytes old_data, unsigned width, ClassFunction function,
                       const History& history, unsigned depth, MutableBytes scratch)
    : ops_(ops),
      old_data_(old_data),
      width_(width),
      function_(function),
      elements_(old_data.size() / width),
      depth_(depth) {
  for (unsigned i = 0; i < depth_; ++i) {
    changed_in_[i] = !history.deltas[i].empty();
    if (changed_in_[i]) {
      past_[i] = PayloadView::Parsed(history.deltas[i], old_data.size(), width);
    }
  }
  void* at = scratch.data();
  size_t room = scratch.size();
  std::align(alignof(BlockWork), sizeof(BlockWork), at, room);
  work_ = static_cast<BlockWork*>(at);
}

unsigned TightChunk::Exponent(size_t block, size_t i) const {
  uint64_t bits = 0;
  std::memcpy(&bits, BlockData(block) + i * width_, width_);
  return ExponentOf(bits, function_);
}

void TightChunk::SetWeights(const TightParameters& parameters) {
  for (unsigned row = 0; row <= parameters.rows; ++row) {
    for (unsigned c = 0; c < kClasses; ++c) weights_[row << 4 | c] = parameters.Weight(row, c);
  }
  std::memcpy(plain_, weights_, sizeof(plain_));
  weighted_ = true;
}

bool TightChunk::Prepare(size_t block, TightCounts* counts) {
  const size_t elements = prepared_ = BlockElements(block);
  ops_.classes(BlockData(block), elements, function_, base_, work_->contexts);
  if (counts != nullptr) {
    uint32_t found[kClasses] = {};
    ops_.count(work_->contexts, elements, found);
    for (unsigned c = 0; c < kClasses; ++c) counts->rate[0][c].of += found[c];
  }
  // before8[i + 1] first gets the sum of eight elements i; the loop below adds them up.
  if (weighted_) ops_.sums(work_->contexts, elements, plain_, work_->before8 + 1);
  if (!Overlay(block, counts)) return false;
  if (!weighted_) return true;
  // Before and Find read eight contexts at a time; those behind the last element weigh nothing.
  std::memset(work_->contexts + elements, kNoWeight, 8);
  const size_t eights = elements / 8;
  uint64_t sum = work_->before8[0] = 0;
  for (size_t i = 1; i <= eights; ++i) work_->before8[i] = sum += work_->before8[i];
  return true;
}

uint64_t TightChunk::Before(size_t i) const {
  uint64_t contexts;
  std::memcpy(&contexts, work_->contexts + i / 8 * 8, 8);
  uint64_t sum = work_->before8[i / 8];
  // Always looks at seven elements: that is cheaper than a loop of unpredictable length.
  for (size_t j = 0; j < 7; ++j) {
    const uint64_t weight = weights_[contexts >> 8 * j & 0x7f];
    sum += j < i % 8 ? weight : 0;
  }
  return sum;
}

TightChunk::Found TightChunk::Find(size_t from, uint64_t sum) const {
  // Finds the last group of eight elements whose sum before it is not above `sum`: with steps that
  // double, since it is usually near, and then halve.
  const uint64_t* before = work_->before8;
  const size_t eights = prepared_ / 8;
  size_t low = from / 8, step = 8;
  while (low + step <= eights && before[low + step] <= sum) {
    low += step;
    step *= 2;
  }
  for (; step > 0; step /= 2) {
    const bool further = low + step <= eights && before[low + step] <= sum;
    low += further ? step : 0;
  }
  uint64_t contexts;
  std::memcpy(&contexts, work_->contexts + low * 8, 8);
  uint64_t running = before[low], last = running;
  size_t passed = 0;
  for (size_t j = 0; j < 8; ++j) {
    running += weights_[contexts >> 8 * j & 0x7f];
    passed += running <= sum;
    last = running <= sum ? running : last;
  }
  return {std::min(low * 8 + passed, prepared_), last};
}

bool TightChunk::Overlay(size_t block, TightCounts* counts) {
  const size_t elements = BlockElements(block);
  for (unsigned i = 0; i < depth_;
       ++i) {  // newest first: the first delta to name an element counts
    if (!changed_in_[i]) continue;
    const BlockRow row = past_[i].Row(block);
    if (row.changed == 0) continue;
    if (!ops_.unpack(row, past_[i].StreamOf(block), past_[i].end(), elements, width_,
                     work_->past_at, work_->past_d)) {
      return false;
    }
    const unsigned age_row = RowOfAge(i + 1);
    for (uint32_t k = 0; k < row.changed; ++k) {
      const size_t at = work_->past_at[k];
      uint8_t& context = work_->contexts[at];
      if (RowOf(context) != 0) continue;
      const unsigned cls = context;
      const bool down = work_->past_d[k] >> (8 * width_ - 1) != 0;
      context = static_cast<uint8_t>(cls | age_row << 4 | unsigned{down} << 7);
      if (weighted_) work_->before8[at / 8 + 1] += uint64_t{WeightOf(context)} - plain_[cls];
      if (counts != nullptr) {
        --counts->rate[0][cls].of;
        ++counts->rate[age_row][cls].of;
      }
    }
  }
  return true;
}

}  // namespace deltawire::kernels
