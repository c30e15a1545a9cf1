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

void TightChunk::SetParameters(const TightParameters& parameters) {
  parameters.FillModel(8 * width_, &model_);
  std::memcpy(plain_, model_.weights, sizeof(plain_));
  weighted_ = true;
}

void TightChunk::CountClasses(TightCounts* counts) {
  uint32_t found[kClasses] = {};
  const bool all = elements_ <= kCountAllElements;
  const size_t stride = kCountedRun * (all ? 1 : kCountedEach);
  for (size_t first = 0; first < elements_; first += stride) {
    const size_t run = std::min(kCountedRun, elements_ - first);
    ops_.classes(Ptr(old_data_) + first * width_, run, function_, base_, work_->contexts);
    ops_.count(work_->contexts, run, found);
  }
  for (unsigned c = 0; c < kClasses; ++c) {
    counts->rate[0][c].of = all ? found[c] : EstimatedCount(found[c]);
  }
}

bool TightChunk::Prepare(size_t block, TightCounts* counts) {
  const size_t elements = prepared_ = BlockElements(block);
  const uint8_t* data = BlockData(block);
  uint32_t found[kClasses] = {};
  // In parts whose classes are still in the first-level cache when they are looked up. before[i +
  // 1] first gets the sum of the elements from kSumStep i on; the loop below adds up.
  constexpr size_t kPart = 4096;
  for (size_t i = 0; i < elements; i += kPart) {
    const size_t part = std::min(kPart, elements - i);
    ops_.classes(data + i * width_, part, function_, base_, work_->contexts + i);
    if (counts != nullptr) ops_.count(work_->contexts + i, part, found);
    if (weighted_) {
      ops_.sums(work_->contexts + i, part, plain_, work_->before + 1 + i / kSumStep);
    }
  }
  if (counts != nullptr) {
    for (unsigned c = 0; c < kClasses; ++c) counts->rate[0][c].of += found[c];
  }
  if (!Overlay(block, counts)) return false;
  if (!weighted_) return true;
  std::memset(work_->contexts + elements, kNoWeight, kSumStep);
  const size_t steps = elements / kSumStep;
  uint64_t sum = work_->before[0] = 0;
  for (size_t i = 1; i <= steps; ++i) work_->before[i] = sum += work_->before[i];
  std::fill_n(work_->before + steps + 1, kSearchAhead, ~uint64_t{0});
  return true;
}

bool TightChunk::Overlay(size_t block, TightCounts* counts) {
  const size_t elements = BlockElements(block);
  // Oldest first, and a newer delta overwrites: to look whether an element has its row already
  // would be an unpredictable branch.
  for (unsigned i = depth_; i-- > 0;) {
    if (!changed_in_[i]) continue;
    const BlockRow row = past_[i].Row(block);
    if (row.changed == 0) continue;
    if (!ops_.unpack(row, past_[i].StreamOf(block), past_[i].end(), elements, width_,
                     work_->past_at, work_->past_d)) {
      return false;
    }
    SetRows(row.changed, RowOfAge(i + 1), counts);
  }
  return true;
}

void TightChunk::SetRows(uint32_t changed, unsigned row, TightCounts* counts) {
  const unsigned sign = 8 * width_ - 1;
  for (uint32_t k = 0; k < changed; ++k) {
    const size_t at = work_->past_at[k];
    const auto down = static_cast<unsigned>(work_->past_d[k] >> sign);
    const uint8_t old_context = work_->contexts[at];
    const auto context = static_cast<uint8_t>(ClassOf(old_context) | row << 4 | down << 7);
    work_->contexts[at] = context;
    if (weighted_) {
      work_->before[at / kSumStep + 1] +=
          uint64_t{model_.WeightOf(context)} - model_.WeightOf(old_context);
    }
    if (counts != nullptr) {
      --counts->rate[RowOf(old_context)][ClassOf(old_context)].of;
      ++counts->rate[row][ClassOf(context)].of;
    }
  }
}

}  // namespace deltawire::kernels
