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
  for (unsigned c = 0; c < kClasses; ++c) {
    plain_.weights[c] = model_.weights[c];
    for (unsigned b = 0; b < 3; ++b) {
      plain_.bytes[b][c] = static_cast<uint8_t>(model_.weights[c] >> 8 * b);
    }
  }
  weighted_ = true;
}

void TightChunk::CountClasses(TightCounts* counts) {
  uint32_t found[kClasses] = {};
  const bool all = elements_ <= kCountAllElements;
  const size_t stride = kCountedRun * (all ? 1 : kCountedEach);
  for (size_t first = 0; first < elements_; first += stride) {
    const size_t run = std::min(kCountedRun, elements_ - first);
    ops_.classes(Ptr(old_data_) + first * width_, run, function_, base_, now().contexts);
    ops_.count(now().contexts, run, found);
  }
  for (unsigned c = 0; c < kClasses; ++c) {
    counts->rate[0][c].of = all ? found[c] : EstimatedCount(found[c]);
  }
}

void TightChunk::PrepareElements(size_t block, size_t first, size_t count, BlockWork::Elements* to,
                                 uint32_t (*found)[kClasses]) {
  // Work in parts whose classes are still in the first-level cache when they are looked up. With a
  // history, before[i + 1] first gets the sum of the elements from kSumStep i on. Prepare
  // accumulates the sums once the history's elements have their rows.
  constexpr size_t kPart = 4096;
  const uint8_t* data = BlockData(block);
  for (size_t i = first; i < first + count; i += kPart) {
    const size_t part = std::min(kPart, first + count - i);
    ops_.classes(data + i * width_, part, function_, base_, to->contexts + i);
    if (found != nullptr) ops_.count(to->contexts + i, part, *found);
    if (weighted_) {
      ops_.sums(to->contexts + i, part, plain_, to->before + 1 + i / kSumStep,
                depth_ == 0 ? &total_ : nullptr);
    }
  }
}

void TightChunk::WorkAhead(void* chunk, size_t elements) {
  auto& c = *static_cast<TightChunk*>(chunk);
  const size_t count = std::min(elements, c.ahead_.left);
  const size_t first = c.BlockElements(c.ahead_block_) - c.ahead_.left;
  c.PrepareElements(c.ahead_block_, first, count, &c.work_->elements[c.current_ ^ 1], nullptr);
  c.ahead_.left -= count;
}

bool TightChunk::Prepare(size_t block, TightCounts* counts) {
  const size_t elements = prepared_ = BlockElements(block);
  size_t done = 0;
  if (block > 0 && block == ahead_block_) {
    current_ ^= 1;
    done = elements - ahead_.left;
  } else {
    total_ = 0;
  }
  uint32_t found[kClasses] = {};
  PrepareElements(block, done, elements - done, &now(), counts != nullptr ? &found : nullptr);
  total_ = 0;
  if (counts != nullptr) {
    for (unsigned c = 0; c < kClasses; ++c) counts->rate[0][c].of += found[c];
  }
  ahead_block_ = block + 1;
  const size_t next = ahead_block_ < blocks() ? BlockElements(ahead_block_) : 0;
  ahead_ = {WorkAhead, this, next};
  next_ =
      next > 0 ? old_data_.subspan(ahead_block_ * kBlockElements * width_, next * width_) : Bytes();
  if (!Overlay(block, counts)) return false;
  if (!weighted_) return true;
  std::memset(now().contexts + elements, kNoWeight, kSumStep);
  uint64_t* const before = now().before;
  const size_t steps = elements / kSumStep;
  before[0] = 0;
  if (depth_ > 0) AddUp(before + 1, steps, &total_);
  std::fill_n(before + steps + 1, kSearchAhead, ~uint64_t{0});
  return true;
}

bool TightChunk::Overlay(size_t block, TightCounts* counts) {
  const size_t elements = BlockElements(block);
  // Oldest first, and a newer delta overwrites: a check whether an element has its row already
  // would be an unpredictable branch.
  for (unsigned i = depth_; i-- > 0;) {
    if (!changed_in_[i]) continue;
    if (block == 0) past_block_[i].emplace(past_[i]);
    BlockCursor& cursor = *past_block_[i];
    const uint32_t changed = cursor.row().changed;
    if (changed > 0) {
      if (!ops_.places(cursor.row(), cursor.stream(), past_[i].end(), elements, width_,
                       work_->past_at, work_->past_down)) {
        return false;
      }
      SetRows(changed, RowOfAge(i + 1), counts);
    }
    cursor.Next();
  }
  return true;
}

/// Calls moved(k, at, old context, context) for every change, number k.
template <typename Moved>
void TightChunk::SetRows(uint32_t changed, unsigned row, Moved moved) {
  uint8_t* const contexts = now().contexts;
  for (uint32_t first = 0; first < changed; first += 64) {
    uint64_t down = work_->past_down[first / 64];
    const uint32_t stop = std::min(changed, first + 64);
    for (uint32_t k = first; k < stop; ++k, down >>= 1) {
      const size_t at = work_->past_at[k];
      const uint8_t old_context = contexts[at];
      const auto context = static_cast<uint8_t>(ClassOf(old_context) | row << 4 | (down & 1) << 7);
      contexts[at] = context;
      moved(k, at, old_context, context);
    }
  }
}

void TightChunk::SetRows(uint32_t changed, unsigned row, TightCounts* counts) {
  uint64_t* const before = now().before + 1;
  const LaneModel& model = model_;
  if (counts == nullptr) {
    return SetRows(changed, row, [&](uint32_t, size_t at, uint8_t old_context, uint8_t context) {
      before[at / kSumStep] += uint64_t{model.WeightOf(context)} - model.WeightOf(old_context);
    });
  }
  // Most changes move between the same two contexts, so a single counter would wait for itself. The
  // counts are spread over several places.
  constexpr size_t kPlaces = 4;
  uint32_t from[kPlaces][kContexts] = {}, to[kPlaces][kContexts] = {};
  SetRows(changed, row, [&](uint32_t k, size_t, uint8_t old_context, uint8_t context) {
    ++from[k % kPlaces][old_context % kContexts];
    ++to[k % kPlaces][context % kContexts];
  });
  for (unsigned r = 0; r < kHistoryRows; ++r) {
    for (unsigned c = 0; c < kClasses; ++c) {
      for (size_t place = 0; place < kPlaces; ++place) {
        counts->rate[r][c].of += to[place][r << 4 | c] - from[place][r << 4 | c];
      }
    }
  }
}

}  // namespace deltawire::kernels
