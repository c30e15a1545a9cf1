// The tight codec's loops over lanes, compiled once per target. Decoding takes an event of each
// lane in turn, so that one lane's latencies (divisions, tables, the search) hide behind the
// others' work. Costs 5 to 10 ns per change. The steps are those of kernels/cpu/tight_lanes.h, with
// searches in vectors.
#include "hwy/highway.h"
#include "kernels/cpu/highway/intervals-inl.h"
#include "kernels/cpu/highway/lane_search-inl.h"
#include "kernels/cpu/highway/lane_vectors-inl.h"
#include "kernels/cpu/tight_lanes.h"

#if defined(DELTAWIRE_KERNELS_CPU_HIGHWAY_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_HIGHWAY_LANES_INL_H_
#undef DELTAWIRE_KERNELS_CPU_HIGHWAY_LANES_INL_H_
#else
#define DELTAWIRE_KERNELS_CPU_HIGHWAY_LANES_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {

/// Prefetches the bytes that are needed after a block, some lines with every change. The coders
/// wait for one another's results and leave the memory idle.
class FetchAhead {
 public:
  explicit FetchAhead(const LaneBlock& block)
      : at_(reinterpret_cast<const char*>(block.next.data())), end_(at_ + block.next.size()) {}
  template <int kLines>
  HWY_INLINE void Fetch() {
    if (at_ >= end_) return;
    for (int line = 0; line < kLines; ++line) {
      __builtin_prefetch(at_ + ptrdiff_t{kCacheLine} * line, 0, 2);  // to the second level
    }
    at_ += ptrdiff_t{kCacheLine} * kLines;
  }

 private:
  static constexpr int kCacheLine = 64;
  const char* at_;
  const char* end_;
};

/// The changes of a lane's part, some at a time. It computes everything that does not depend on the
/// coder, to keep the coder's dependency chain as short as possible.
template <bool kHistory>
class PutPart {
 public:
  PutPart(const LaneModel& model, const LaneBlock& block, const IntervalMaker& maker,
          LaneEncoder& lane, const uint16_t* at, const uint64_t* d, size_t changed)
      : model_(model), block_(block), maker_(maker), lane_(lane), at_(at), d_(d), left_(changed) {}

  size_t size() const { return size_; }
  /// Prepares the next changes; returns false when there are none.
  HWY_INLINE bool Fill(const StepWeights<kHistory>& weights, FetchAhead& ahead) {
    size_ = std::min(left_, kMost);
    uint64_t origin = lane_.cursor.origin;
    const unsigned sign = model_.bits - 1;
    size_t j = 0;
#if HWY_TARGET <= HWY_AVX3
    if constexpr (!kHistory) {
      for (; j + 8 <= size_; j += 8) {
        ahead.Fetch<24>();
        origin =
            maker_.Make(at_ + j, d_ + j, origin,
                        {after_ + j, share_ + j, sign_ + j, longer_ + j, sum_ + j, before_ + j});
      }
    }
#endif
    for (; j < size_; ++j) {
      ahead.Fetch<3>();
      const size_t i = at_[j], step = i / kSumStep;
      const uint64_t before =
          block_.before[step] + weights.SumOf(block_.contexts + step * kSumStep, i % kSumStep);
      const uint8_t context = block_.contexts[i];
      const uint32_t weight = model_.WeightOf(context);
      SetInterval(j, before - origin, weight);
      sum_[j] = before - origin;
      before_[j] = before;
      origin = before + weight;
      const bool negative = d_[j] >> sign != 0;
      const uint64_t magnitude = Magnitude(j);
      longer_[j] = uint32_t{model_.longer[ClassOf(context)][1]} | uint32_t{magnitude > 1} << 31;
      if constexpr (kHistory) {
        const bool row = RowOf(context) > 0;
        const uint32_t p = row ? model_.same[context % kContexts] : kEven;
        const bool yes = row ? negative == WentDown(context) : negative;
        sign_[j] = p | uint32_t{row} << 30 | uint32_t{yes} << 31;
      } else {
        sign_[j] = uint32_t{negative} << 31;
      }
    }
    return size_ > 0;
  }
  HWY_INLINE RangeEncoder Put(RangeEncoder coder, size_t j) {
    if (HWY_UNLIKELY(sum_[j] >= kSkipAt)) coder = PutSkips(coder, j);
    const bool yes = sign_[j] >> 31 != 0, longer = longer_[j] >> 31 != 0;
    const uint32_t p = longer_[j] & 0xffff;
    if constexpr (kHistory) {
      coder.PutEvent(after_[j], share_[j]);
      coder.PutDecision(yes, sign_[j] & 0xffff);
      coder.NormaliseIf((sign_[j] >> 30 & 1) != 0);
      coder.PutDecision(longer, p);
    } else {
      coder.PutEventAndTwo(after_[j], share_[j], yes, longer, p);
    }
    coder.Normalise();
    if (HWY_UNLIKELY(longer)) {
      const unsigned cls = ClassOf(block_.contexts[at_[j]]);
      coder = LaneEncoder::PutMagnitude(coder, model_, cls, Magnitude(j));
    }
    return coder;
  }
  /// Continues after the prepared changes.
  HWY_INLINE void Pass() {
    if (size_ == 0) return;
    const size_t last = size_ - 1;
    lane_.cursor.PassChange(at_[last], before_[last], model_.WeightOf(block_.contexts[at_[last]]));
    at_ += size_;
    d_ += size_;
    left_ -= size_;
  }

 private:
  static constexpr size_t kMost = 256;

  HWY_INLINE uint64_t Magnitude(size_t j) const {
    const uint64_t negative = d_[j] >> (model_.bits - 1);
    return ((d_[j] ^ (0 - negative)) + negative) & model_.mask;
  }
  HWY_INLINE void SetInterval(size_t j, uint64_t sum, uint32_t weight) {
    const uint64_t after = Survival(sum + weight);
    after_[j] = static_cast<uint32_t>(after);
    share_[j] = static_cast<uint32_t>(Survival(sum) - after);
  }
  [[gnu::noinline]] RangeEncoder PutSkips(RangeEncoder coder, size_t j) {
    LaneCursor& cursor = lane_.cursor;
    if (j > 0) {
      cursor.at = size_t{at_[j - 1]} + 1;
      cursor.origin = before_[j] - sum_[j];
      cursor.sum = 0;
    }
    lane_.coder = coder;
    lane_.PutSkips(model_, block_, at_[j]);
    SetInterval(j, cursor.sum, model_.WeightOf(block_.contexts[at_[j]]));
    return lane_.coder;
  }

  const LaneModel& model_;
  const LaneBlock& block_;
  const IntervalMaker& maker_;
  LaneEncoder& lane_;
  const uint16_t* at_;
  const uint64_t* d_;
  size_t left_;
  size_t size_ = 0;
  uint32_t after_[kMost], share_[kMost];  ///< the intervals' starts and sizes
  uint32_t sign_[kMost];    ///< probability, bit 30: whether to normalize after it, bit 31: yes
  uint32_t longer_[kMost];  ///< probability, bit 31: yes
  uint64_t sum_[kMost], before_[kMost];
};

/// Codes the parts of one or two lanes. Two coders in turn take little longer than one, since each
/// waits for its own last step.
template <bool kHistory, unsigned kCount>
void PutParts(const StepWeights<kHistory>& weights, FetchAhead& ahead, LaneEncoder* lanes,
              PutPart<kHistory>* parts) {
  for (;;) {
    bool any = false;
    for (unsigned l = 0; l < kCount; ++l) any |= parts[l].Fill(weights, ahead);
    if (!any) return;
    RangeEncoder first = lanes[0].coder, second = lanes[kCount - 1].coder;
    size_t j = 0;
    if constexpr (kCount == 2) {
      for (const size_t both = std::min(parts[0].size(), parts[1].size()); j < both; ++j) {
        first = parts[0].Put(first, j);
        second = parts[1].Put(second, j);
      }
      for (size_t k = j; k < parts[1].size(); ++k) second = parts[1].Put(second, k);
      lanes[1].coder = second;
    }
    for (; j < parts[0].size(); ++j) first = parts[0].Put(first, j);
    lanes[0].coder = first;
    for (unsigned l = 0; l < kCount; ++l) parts[l].Pass();
  }
}

template <bool kHistory>
void PutLanesAs(const LaneModel& model, const LaneBlock& block, LaneEncoder* lanes,
                unsigned lane_bits, const uint16_t* at, const uint64_t* d, size_t changed) {
  const StepWeights<kHistory> weights(model);
  const IntervalMaker maker(model, block);
  FetchAhead ahead(block);
  size_t i = 0;
  const auto part_of = [&](unsigned l) {
    lanes[l].cursor.Start(block, model, l, lane_bits);
    const auto first = i;
    i = static_cast<size_t>(
        std::lower_bound(at + i, at + changed, lanes[l].cursor.last,
                         [](uint16_t place, size_t last) { return place < last; }) -
        at);
    return PutPart<kHistory>(model, block, maker, lanes[l], at + first, d + first, i - first);
  };
  if (lane_bits == 0) {
    PutPart<kHistory> parts[] = {part_of(0)};
    PutParts<kHistory, 1>(weights, ahead, lanes, parts);
  } else {
    for (unsigned l = 0; l < 1u << lane_bits; l += 2) {
      PutPart<kHistory> parts[] = {part_of(l), part_of(l + 1)};
      PutParts<kHistory, 2>(weights, ahead, lanes + l, parts);
    }
  }
  for (unsigned l = 0; l < 1u << lane_bits; ++l) {
    lanes[l].PutSkips(model, block, lanes[l].cursor.last);
  }
}

inline void PutLanes(const LaneModel& model, const LaneBlock& block, LaneEncoder* lanes,
                     unsigned lane_bits, const uint16_t* at, const uint64_t* d, size_t changed) {
  return model.history ? PutLanesAs<true>(model, block, lanes, lane_bits, at, d, changed)
                       : PutLanesAs<false>(model, block, lanes, lane_bits, at, d, changed);
}

/// Does LaneDecoder::Step with a faster search.
template <bool kHistory>
HWY_INLINE LaneStep GetEvent(const LaneModel& model, const LaneBlock& block,
                             const StepWeights<kHistory>& weights, LaneDecoder& lane, uint16_t* at,
                             uint64_t* d) {
  LaneCursor& cursor = lane.cursor;
  if (HWY_UNLIKELY(lane.point >= kSkipAt)) return lane.Step(model, block, at, d);
  const uint64_t target = cursor.origin + lane.point;
  const size_t step = FindStep(block, cursor.at / kSumStep, cursor.last, target);
  const uint64_t start = block.before[step];
  const FoundInStep found =
      weights.Find(block.contexts + step * kSumStep, static_cast<uint32_t>(target - start));
  const size_t i = step * kSumStep + found.index;
  if (HWY_UNLIKELY(i >= cursor.last)) {
    cursor.MoveTo(cursor.last, SumBefore(model, block, cursor.last));
    return LaneStep::kDone;
  }
  return lane.TakeChange(model, block.contexts[i], i, start + found.after - found.weight,
                         found.weight, at, d)
             ? LaneStep::kMore
             : LaneStep::kBad;
}

/// Decodes a change of each of kCount lanes, step by step for all lanes at once. Each step's
/// results are needed late, so that latencies overlap even in a processor's short window. Returns
/// false without any effect when a lane needs more care.
template <bool kHistory, unsigned kCount>
HWY_INLINE bool GetChanges(const LaneModel& model, const LaneBlock& block,
                           const StepWeights<kHistory>& weights, const OpenLane* open, bool* bad) {
  size_t i[kCount];
  uint64_t before[kCount];
  uint32_t weight[kCount];
  bool careful = false;
#pragma GCC unroll 4
  for (unsigned l = 0; l < kCount; ++l) {
    const LaneDecoder& lane = *open[l].lane;
    const uint64_t target = lane.cursor.origin + lane.point;
    const size_t from = lane.cursor.at / kSumStep;
    const size_t step = FindStep(block, from, lane.cursor.last, target);
    const uint64_t start = block.before[step];
    const FoundInStep found =
        weights.Find(block.contexts + step * kSumStep, static_cast<uint32_t>(target - start));
    i[l] = step * kSumStep + found.index;
    before[l] = start + found.after - found.weight;
    weight[l] = found.weight;
    careful |= lane.point >= kSkipAt || i[l] >= lane.cursor.last;
  }
  if (HWY_UNLIKELY(careful)) return false;
#pragma GCC unroll 4
  for (unsigned l = 0; l < kCount; ++l) open[l].lane->TakeInterval(before[l], weight[l]);
  bool longer[kCount];
#pragma GCC unroll 4
  for (unsigned l = 0; l < kCount; ++l) {
    LaneDecoder& lane = *open[l].lane;
    const uint8_t context = block.contexts[i[l]];
    const bool negative = kHistory ? lane.TakeSign(model, context) : lane.coder.GetDecision(kEven);
    longer[l] = lane.coder.GetDecision(model.longer[ClassOf(context)][1]);
    lane.coder.Normalise();
    lane.PutUnit(model, negative, i[l], open[l].at, open[l].d);
  }
  bool ok = true;
#pragma GCC unroll 4
  for (unsigned l = 0; l < kCount; ++l) {
    if (HWY_UNLIKELY(longer[l])) {
      LaneDecoder& lane = *open[l].lane;
      ok &= lane.TakeMagnitude(model, block.contexts[i[l]], open[l].d + lane.changed - 1);
    }
  }
#pragma GCC unroll 4
  for (unsigned l = 0; l < kCount; ++l) ok &= open[l].lane->ReadPoint();
  *bad = !ok;
  return true;
}

/// Decodes changes of all these lanes until one needs care. Returns false when a stream is
/// malformed.
template <bool kHistory, unsigned kCount>
bool GetFrom(const LaneModel& model, const LaneBlock& block, const StepWeights<kHistory>& weights,
             const OpenLane* open, const WorkAhead& ahead) {
  bool bad = false;
  while (!bad && GetChanges<kHistory, kCount>(model, block, weights, open, &bad)) {
    ahead.Work();
  }
  return !bad;
}

#if HWY_TARGET <= HWY_AVX3
/// Decodes the block's rest of these lanes in vectors.
inline bool GetInRounds(const LaneModel& model, const LaneBlock& block,
                        const StepWeights<false>& weights, OpenLane* open, unsigned count,
                        const WorkAhead& ahead) {
  LaneRounds rounds(model, block);
  while (count > 0) {
    rounds.Begin(open, count);
    unsigned care = rounds.Take(ahead);
    if (!rounds.End(care)) return false;
    unsigned left = 0;
    for (unsigned l = 0; l < count; ++l, care >>= 1) {
      LaneStep step = LaneStep::kMore;
      if ((care & 1) != 0) {
        step = GetEvent(model, block, weights, *open[l].lane, open[l].at, open[l].d);
      }
      if (step == LaneStep::kBad) return false;
      if (step == LaneStep::kMore) open[left++] = open[l];
    }
    count = left;
  }
  return true;
}
#endif

template <bool kHistory>
bool GetLanesAs(const LaneModel& model, const LaneBlock& block, LaneDecoder* lanes,
                unsigned lane_bits, uint16_t* at, uint64_t* d) {
  const StepWeights<kHistory> weights(model);
  OpenLane open[kMaxLanes];
  unsigned count = 1u << lane_bits;
  const WorkAhead ahead(block, lanes, count);
  for (unsigned l = 0; l < count; ++l) {
    lanes[l].cursor.Start(block, model, l, lane_bits);
    lanes[l].changed = 0;
    open[l] = {&lanes[l], at + lanes[l].cursor.at, d + lanes[l].cursor.at};
  }
  static_assert(kMaxLanes == 4);
#if HWY_TARGET <= HWY_AVX3
  if constexpr (!kHistory) return GetInRounds(model, block, weights, open, count, ahead);
#endif
  while (count > 0) {
    const bool good = count == 4   ? GetFrom<kHistory, 4>(model, block, weights, open, ahead)
                      : count == 3 ? GetFrom<kHistory, 3>(model, block, weights, open, ahead)
                      : count == 2 ? GetFrom<kHistory, 2>(model, block, weights, open, ahead)
                                   : GetFrom<kHistory, 1>(model, block, weights, open, ahead);
    if (!good) return false;
    // At least one of the lanes needs care: it skips, or is done.
    unsigned left = 0;
    for (unsigned l = 0; l < count; ++l) {
      const LaneStep step = GetEvent(model, block, weights, *open[l].lane, open[l].at, open[l].d);
      if (step == LaneStep::kBad) return false;
      if (step == LaneStep::kMore) open[left++] = open[l];
    }
    count = left;
  }
  return true;
}

inline bool GetLanes(const LaneModel& model, const LaneBlock& block, LaneDecoder* lanes,
                     unsigned lane_bits, uint16_t* at, uint64_t* d) {
  return model.history ? GetLanesAs<true>(model, block, lanes, lane_bits, at, d)
                       : GetLanesAs<false>(model, block, lanes, lane_bits, at, d);
}

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAWIRE_KERNELS_CPU_HIGHWAY_LANES_INL_H_
