// The lanes of the tight codec (docs/delta_format.md, "Lanes"): coders that pass their parts block
// by block, and the single steps from which a backend makes its loop over all lanes. Lanes point
// into the caller's memory. Costs 5 to 15 ns per change. A step returns false or kBad when the
// stream is malformed.
#pragma once

#include <algorithm>

#include "kernels/bits.h"
#include "kernels/cpu/range_coder.h"
#include "kernels/cpu/survival.h"
#include "kernels/format.h"
#include "kernels/kernels.h"

namespace deltawire::kernels {

/// An element's context: class in bits 0-3, row in bits 4-6, direction (1: down) in bit 7.
constexpr unsigned ClassOf(uint8_t context) { return context & 15; }
constexpr unsigned RowOf(uint8_t context) { return context >> 4 & 7; }
constexpr bool WentDown(uint8_t context) { return context >> 7 != 0; }

/// Contexts without their direction.
inline constexpr size_t kContexts = 128;
/// The context of no element; its weight is 0.
inline constexpr uint8_t kNoWeight = 0x7f;
/// The number of elements between two sums of weights.
inline constexpr size_t kSumStep = 16;

struct LaneModel {
  alignas(64) uint32_t weights[kContexts] = {};
  uint16_t same[kContexts] = {};
  uint16_t longer[kClasses][64] = {};  ///< of the decision L > j, by class and j
  uint16_t second = 0;                 ///< of the second highest bit
  unsigned bits = 0;                   ///< of an element
  uint64_t mask = 0;                   ///< an element's bits
  bool history = false;                ///< whether any row but 0 occurs

  uint32_t WeightOf(uint8_t context) const { return weights[context % kContexts]; }
};

/// Work on the next block, which lanes do in pieces during their latencies.
struct AheadWork {
  /// Works on this many more of the remaining elements, or on all of them.
  void (*work)(void* chunk, size_t elements) = nullptr;
  void* chunk = nullptr;
  size_t left = 0;
};

/// One block, as lanes see it. Both arrays continue after the last element, with kNoWeight and with
/// sums that no search passes, for the length of a search's reads.
struct LaneBlock {
  const uint8_t* contexts;
  const uint64_t* before;  ///< before[i]: sum of the weights of the elements before kSumStep i
  size_t elements;
  Bytes next = {};  ///< the old bytes of the next block, to be prefetched
  AheadWork* ahead = nullptr;

  /// Returns the first element of a lane, or one past the last of the lane before it.
  size_t First(unsigned lane, unsigned lane_bits) const {
    return std::min(lane * (kBlockElements >> lane_bits), elements);
  }
};

/// Returns the sum of the weights of the elements before `i`.
[[gnu::noinline]] inline uint64_t SumBefore(const LaneModel& model, const LaneBlock& block,
                                            size_t i) {
  uint64_t sum = block.before[i / kSumStep];
  for (size_t j = i / kSumStep * kSumStep; j < i; ++j) sum += model.WeightOf(block.contexts[j]);
  return sum;
}

struct LaneFound {
  size_t at;
  uint64_t before;  ///< SumBefore(at)
};
/// Returns the first element from `from` on with SumBefore(element + 1) > sum, or `last` if it
/// comes first. REQUIRES: SumBefore(from) <= sum.
inline LaneFound FindSum(const LaneModel& model, const LaneBlock& block, size_t from, size_t last,
                         uint64_t sum) {
  size_t step = from / kSumStep;
  while ((step + 1) * kSumStep <= last && block.before[step + 1] <= sum) ++step;
  uint64_t before = block.before[step];
  for (size_t at = step * kSumStep; at < last; ++at) {
    const uint64_t after = before + model.WeightOf(block.contexts[at]);
    if (after > sum) return {at, before};
    before = after;
  }
  return {last, before};
}

/// A lane's place in the current block. S at element i is SumBefore(i) - origin, modulo 2^64.
struct LaneCursor {
  size_t at = 0;
  size_t last = 0;      ///< the end of the lane's part
  uint64_t origin = 0;  ///< where S was 0
  uint64_t sum = 0;     ///< S at `at`

  /// Continues in the next block with the sum of the block before.
  [[gnu::noinline]] void Start(const LaneBlock& block, const LaneModel& model, unsigned lane,
                               unsigned lane_bits) {
    at = block.First(lane, lane_bits);
    last = block.First(lane + 1, lane_bits);
    origin = SumBefore(model, block, at) - sum;
  }
  void Skip() {
    origin += sum;
    sum = 0;
  }
  void MoveTo(size_t i, uint64_t before) {
    at = i;
    sum = before - origin;
  }
  /// Passes element `i`, which changed, at the sum `before` with this weight.
  void PassChange(size_t i, uint64_t before, uint32_t weight) {
    at = i + 1;
    origin = before + weight;
    sum = 0;
  }
};

struct LaneEncoder {
  RangeEncoder coder;
  LaneCursor cursor;

  /// Writes the skips that are due at or before element `stop`, and moves there.
  [[gnu::noinline]] void PutSkips(const LaneModel& model, const LaneBlock& block, size_t stop) {
    for (;;) {
      if (cursor.sum >= kSkipAt) {
        if (cursor.at == cursor.last) return;  // due at the first element of the lane's next part
        PutRest();
        cursor.Skip();
      }
      const uint64_t before = SumBefore(model, block, stop);
      if (before - cursor.origin < kSkipAt) return cursor.MoveTo(stop, before);
      const LaneFound found =
          FindSum(model, block, cursor.at, cursor.last, cursor.origin + kSkipAt - 1);
      cursor.MoveTo(found.at + 1, SumBefore(model, block, found.at + 1));
    }
  }
  /// Writes the event "skip" or "end".
  void PutRest() {
    coder.PutEvent(0, Survival(cursor.sum));
    coder.Normalise();
  }
  /// Writes a change at the value `sum` of S.
  void PutChange(const LaneModel& model, uint8_t context, uint64_t sum, uint64_t d) {
    const uint64_t after = Survival(sum + model.WeightOf(context));
    coder.PutEvent(after, Survival(sum) - after);
    const bool negative = d >> (model.bits - 1) != 0;
    if (RowOf(context) == 0) {
      coder.PutDecision(negative, kEven);
    } else {
      coder.PutDecision(negative == WentDown(context), model.same[context % kContexts]);
      coder.Normalise();
    }
    const uint64_t magnitude = ((d ^ (0 - uint64_t{negative})) + negative) & model.mask;
    coder.PutDecision(magnitude > 1, model.longer[ClassOf(context)][1]);
    coder.Normalise();
    if (magnitude > 1) coder = PutMagnitude(coder, model, ClassOf(context), magnitude);
  }
  /// Writes the part after the decision L > 1. The coder is passed by value, so that a caller's can
  /// stay in registers.
  [[gnu::noinline]] static RangeEncoder PutMagnitude(RangeEncoder coder, const LaneModel& model,
                                                     unsigned cls, uint64_t magnitude) {
    const unsigned length = Bits(magnitude);
    for (unsigned j = 2; j <= length && j < model.bits; ++j) {
      coder.PutDecision(length > j, model.longer[cls][j]);
      coder.Normalise();
    }
    if (length == model.bits) return coder;
    coder.PutDecision((magnitude >> (length - 2) & 1) != 0, model.second);
    coder.Normalise();
    for (unsigned left = length - 2; left > 0;) {
      const unsigned part = std::min(left, kMaxRawBits);
      left -= part;
      coder.PutRaw(magnitude >> left & LowMask(part), part);
      coder.Normalise();
    }
    return coder;
  }
};

enum class LaneStep { kMore, kDone, kBad };

struct LaneDecoder {
  RangeDecoder coder;
  LaneCursor cursor;
  uint64_t point = 0;    ///< the largest S within the next event's point
  uint32_t changed = 0;  ///< changes of the current part

  bool ReadPoint() {
    const uint64_t point_of_coder = coder.Point();
    if (point_of_coder >= kCertain) [[unlikely]]
      return false;
    point = LargestSum(point_of_coder + 1);
    return true;
  }
  /// Takes one event, or finds that the part is done before the next one.
  [[gnu::noinline]] LaneStep Step(const LaneModel& model, const LaneBlock& block, uint16_t* at,
                                  uint64_t* d) {
    if (cursor.sum < kSkipAt) {
      const LaneFound found = FindSum(model, block, cursor.at, cursor.last,
                                      cursor.origin + std::min(point, kSkipAt - 1));
      cursor.MoveTo(found.at, found.before);
      // If the point is beyond a skip, this element takes the sum to it. Unless it also takes the
      // sum above the point, the skip is due at the next element.
      if (point >= kSkipAt && found.at != cursor.last) {
        const uint32_t weight = model.WeightOf(block.contexts[found.at]);
        if (cursor.sum + weight <= point) cursor.MoveTo(found.at + 1, found.before + weight);
      }
    }
    if (cursor.at == cursor.last) return LaneStep::kDone;
    if (cursor.sum >= kSkipAt) {
      coder.TakeEvent(0, Survival(cursor.sum));
      coder.Normalise();
      cursor.Skip();
      return ReadPoint() ? LaneStep::kMore : LaneStep::kBad;
    }
    const uint8_t context = block.contexts[cursor.at];
    return TakeChange(model, context, cursor.at, cursor.origin + cursor.sum,
                      model.WeightOf(context), at, d)
               ? LaneStep::kMore
               : LaneStep::kBad;
  }
  /// Takes the change of element `i` with this weight, into at[changed] and d[changed], and reads
  /// the next point. `before` is the sum of the weights before it.
  bool TakeChange(const LaneModel& model, uint8_t context, size_t i, uint64_t before,
                  uint32_t weight, uint16_t* at, uint64_t* d) {
    TakeInterval(before, weight);
    const bool negative = TakeSign(model, context);
    const bool longer = coder.GetDecision(model.longer[ClassOf(context)][1]);
    coder.Normalise();
    PutUnit(model, negative, i, at, d);
    if (longer && !TakeMagnitude(model, context, d + changed - 1)) return false;
    return ReadPoint();
  }
  // The parts of TakeChange, in their order.
  [[gnu::always_inline]] void TakeInterval(uint64_t before, uint32_t weight) {
    const uint64_t sum = before - cursor.origin;
    const uint64_t after = Survival(sum + weight);
    coder.TakeEvent(after, Survival(sum) - after);
    cursor.origin = before + weight;
    cursor.sum = 0;
  }
  [[gnu::always_inline]] bool TakeSign(const LaneModel& model, uint8_t context) {
    if (RowOf(context) == 0) return coder.GetDecision(kEven);
    const bool same = coder.GetDecision(model.same[context % kContexts]);
    coder.Normalise();
    return same == WentDown(context);
  }
  [[gnu::always_inline]] void PutUnit(const LaneModel& model, bool negative, size_t i, uint16_t* at,
                                      uint64_t* d) {
    at[changed] = static_cast<uint16_t>(i);
    d[changed] = negative ? model.mask : 1;
    cursor.at = i + 1;
    ++changed;
  }
  /// Reads the part after the decision L > 1, and turns *d from 1 or -1 into the difference.
  [[gnu::noinline]] bool TakeMagnitude(const LaneModel& model, uint8_t context, uint64_t* d) {
    uint64_t magnitude = 0;
    const bool negative = *d != 1;
    if (!GetMagnitude(model, ClassOf(context), negative, &magnitude)) return false;
    *d = (negative ? 0 - magnitude : magnitude) & model.mask;
    return true;
  }
  /// Call this after the last part. It takes the event "end", and returns whether an encoder would
  /// write this stream.
  bool Finish() {
    coder.TakeEvent(0, Survival(cursor.sum));
    coder.Normalise();
    return coder.AtEnd();
  }

 private:
  /// Reads the part after the decision L > 1.
  bool GetMagnitude(const LaneModel& model, unsigned cls, bool negative, uint64_t* magnitude) {
    unsigned length = 2;
    for (bool longer = true; length < model.bits; ++length) {
      longer = coder.GetDecision(model.longer[cls][length]);
      coder.Normalise();
      if (!longer) break;
    }
    *magnitude = uint64_t{1} << (length - 1);
    if (length == model.bits) return negative;
    if (coder.GetDecision(model.second)) *magnitude |= *magnitude >> 1;
    coder.Normalise();
    for (unsigned left = length - 2; left > 0;) {
      const unsigned part = std::min(left, kMaxRawBits);
      uint64_t raw = 0;
      if (!coder.GetRaw(part, &raw)) return false;
      coder.Normalise();
      left -= part;
      *magnitude |= raw << left;
    }
    return true;
  }
};

}  // namespace deltawire::kernels
