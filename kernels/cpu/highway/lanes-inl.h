// The tight codec's loops over lanes, compiled once per target. Decoding takes an event of each
// lane in turn: one lane's waits for divisions, tables and the search then hide behind the others'
// work. Works in the caller's memory, in any thread. Cost: 5 to 10 ns per change. Source of every
// rule: kernels/cpu/tight_lanes.h, whose steps these are, with searches in vectors.
#include "hwy/highway.h"
#include "kernels/cpu/tight_lanes.h"

#if defined(DELTAWIRE_KERNELS_CPU_HIGHWAY_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_HIGHWAY_LANES_INL_H_
#undef DELTAWIRE_KERNELS_CPU_HIGHWAY_LANES_INL_H_
#else
#define DELTAWIRE_KERNELS_CPU_HIGHWAY_LANES_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {

/// The element in a step of kSumStep elements whose weight takes the sum above a value.
struct FoundInStep {
  size_t index = 0;    ///< kSumStep: none
  uint32_t after = 0;  ///< sum of the weights up to and with it; 0 if there is none
  uint32_t weight = 0;
};

#if HWY_TARGET <= HWY_AVX3
/// Looks up the weights of a step's elements.
template <bool kHistory>
class StepWeights {
 public:
  explicit StepWeights(const LaneModel& model)
      : model_(model), plain_(_mm512_loadu_si512(model.weights)) {}
  HWY_INLINE __m512i Of(const uint8_t* contexts) const {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(contexts));
    __m512i index = _mm512_cvtepu8_epi32(bytes);
    if constexpr (kHistory) {
      index = _mm512_and_si512(index, _mm512_set1_epi32(kContexts - 1));
      return _mm512_i32gather_epi32(index, model_.weights, 4);
    }
    // kNoWeight looks up the weight of its lowest four bits, which no search reaches.
    return _mm512_permutexvar_epi32(index, plain_);
  }
  /// Sum of the weights of the first `count` < kSumStep elements.
  HWY_INLINE uint32_t SumOf(const uint8_t* contexts, size_t count) const {
    const auto mask = static_cast<__mmask16>((1u << count) - 1);
    const __m512i weights = _mm512_maskz_mov_epi32(mask, Of(contexts));
    return static_cast<uint32_t>(_mm512_reduce_add_epi32(weights));
  }
  HWY_INLINE FoundInStep Find(const uint8_t* contexts, uint32_t sum) const {
    const __m512i weights = Of(contexts), zero = _mm512_setzero_si512();
    __m512i after = _mm512_add_epi32(weights, _mm512_alignr_epi32(weights, zero, 15));
    after = _mm512_add_epi32(after, _mm512_alignr_epi32(after, zero, 14));
    after = _mm512_add_epi32(after, _mm512_alignr_epi32(after, zero, 12));
    after = _mm512_add_epi32(after, _mm512_alignr_epi32(after, zero, 8));
    const __mmask16 beyond =
        _mm512_cmpgt_epu32_mask(after, _mm512_set1_epi32(static_cast<int>(sum)));
    const auto first = [beyond](__m512i v) {
      return static_cast<uint32_t>(
          _mm_cvtsi128_si32(_mm512_castsi512_si128(_mm512_maskz_compress_epi32(beyond, v))));
    };
    return {static_cast<size_t>(std::countr_zero(uint32_t{beyond} | 1u << kSumStep)), first(after),
            first(weights)};
  }

 private:
  const LaneModel& model_;
  __m512i plain_;
};

/// The last step that begins with a sum of at most `sum`, from `step` on.
HWY_INLINE size_t FindStep(const LaneBlock& block, size_t step, size_t last, uint64_t sum) {
  const __m512i most = _mm512_set1_epi64(static_cast<int64_t>(sum));
  for (;;) {
    const auto* before = block.before + step + 1;
    const auto low = _mm512_cmple_epu64_mask(_mm512_loadu_si512(before), most);
    const auto high = _mm512_cmple_epu64_mask(_mm512_loadu_si512(before + 8), most);
    const auto passed =
        static_cast<size_t>(std::popcount(static_cast<uint32_t>(low) | uint32_t{high} << 8));
    step += passed;
    if (HWY_LIKELY(passed < 16) || step * kSumStep >= last) return step;
  }
}
#else
template <bool kHistory>
class StepWeights {
 public:
  explicit StepWeights(const LaneModel& model) : model_(model) {}
  HWY_INLINE uint32_t SumOf(const uint8_t* contexts, size_t count) const {
    uint32_t sum = 0;
    // Always looks at the same elements: that is cheaper than a loop of unpredictable length.
    for (size_t j = 0; j < kSumStep - 1; ++j) {
      const uint32_t weight = model_.WeightOf(contexts[j]);
      sum += j < count ? weight : 0;
    }
    return sum;
  }
  HWY_INLINE FoundInStep Find(const uint8_t* contexts, uint32_t sum) const {
    uint32_t after = 0, passed_sum = 0;
    size_t passed = 0;
    for (size_t j = 0; j < kSumStep; ++j) {
      after += model_.WeightOf(contexts[j]);
      passed += after <= sum;
      passed_sum = after <= sum ? after : passed_sum;
    }
    if (passed == kSumStep) return {passed};
    const uint32_t weight = model_.WeightOf(contexts[passed]);
    return {passed, passed_sum + weight, weight};
  }

 private:
  const LaneModel& model_;
};

HWY_INLINE size_t FindStep(const LaneBlock& block, size_t step, size_t last, uint64_t sum) {
  while (block.before[step + 1] <= sum && (step + 1) * kSumStep <= last) ++step;
  return step;
}
#endif

template <bool kHistory>
void PutLanesAs(const LaneModel& model, const LaneBlock& block, LaneEncoder* lanes,
                unsigned lane_bits, const uint16_t* at, const uint64_t* d, size_t changed) {
  const StepWeights<kHistory> weights(model);
  size_t i = 0;
  for (unsigned l = 0; l < 1u << lane_bits; ++l) {
    LaneEncoder lane = lanes[l];  // a copy, whose members can stay in registers
    lane.cursor.Start(block, model, l, lane_bits);
    for (; i < changed && at[i] < lane.cursor.last; ++i) {
      const size_t step = at[i] / kSumStep;
      const uint64_t before =
          block.before[step] + weights.SumOf(block.contexts + step * kSumStep, at[i] % kSumStep);
      uint64_t sum = before - lane.cursor.origin;
      if (HWY_UNLIKELY(sum >= kSkipAt)) {
        lane.PutSkips(model, block, at[i]);
        sum = lane.cursor.sum;
      }
      const uint8_t context = block.contexts[at[i]];
      lane.PutChange(model, context, sum, d[i]);
      lane.cursor.PassChange(at[i], before, model.WeightOf(context));
    }
    lane.PutSkips(model, block, lane.cursor.last);
    lanes[l] = lane;
  }
}

inline void PutLanes(const LaneModel& model, const LaneBlock& block, LaneEncoder* lanes,
                     unsigned lane_bits, const uint16_t* at, const uint64_t* d, size_t changed) {
  return model.history ? PutLanesAs<true>(model, block, lanes, lane_bits, at, d, changed)
                       : PutLanesAs<false>(model, block, lanes, lane_bits, at, d, changed);
}

/// LaneDecoder::Step with a faster search.
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

/// Takes a change of each of kCount lanes, step by step for all lanes at once: each step's results
/// are needed late, so that its waits overlap even in a short window of the processor. False, and
/// nothing done, where a lane needs more care.
template <bool kHistory, unsigned kCount>
HWY_INLINE bool GetChanges(const LaneModel& model, const LaneBlock& block,
                           const StepWeights<kHistory>& weights, LaneDecoder* lanes,
                           const size_t* first, uint16_t* at, uint64_t* d, bool* bad) {
  size_t i[kCount];
  uint64_t before[kCount];
  uint32_t weight[kCount];
  bool careful = false;
#pragma GCC unroll 4
  for (unsigned l = 0; l < kCount; ++l) {
    const uint64_t target = lanes[l].cursor.origin + lanes[l].point;
    const size_t from = lanes[l].cursor.at / kSumStep;
    const size_t step = FindStep(block, from, lanes[l].cursor.last, target);
    const uint64_t start = block.before[step];
    const FoundInStep found =
        weights.Find(block.contexts + step * kSumStep, static_cast<uint32_t>(target - start));
    i[l] = step * kSumStep + found.index;
    before[l] = start + found.after - found.weight;
    weight[l] = found.weight;
    careful |= lanes[l].point >= kSkipAt || i[l] >= lanes[l].cursor.last;
  }
  if (HWY_UNLIKELY(careful)) return false;
#pragma GCC unroll 4
  for (unsigned l = 0; l < kCount; ++l) lanes[l].TakeInterval(before[l], weight[l]);
  bool longer[kCount];
#pragma GCC unroll 4
  for (unsigned l = 0; l < kCount; ++l) {
    const uint8_t context = block.contexts[i[l]];
    const bool negative =
        kHistory ? lanes[l].TakeSign(model, context) : lanes[l].coder.GetDecision(kEven);
    longer[l] = lanes[l].coder.GetDecision(model.longer[ClassOf(context)][1]);
    lanes[l].coder.Normalise();
    lanes[l].PutUnit(model, negative, i[l], at + first[l], d + first[l]);
  }
  bool ok = true;
#pragma GCC unroll 4
  for (unsigned l = 0; l < kCount; ++l) {
    if (HWY_UNLIKELY(longer[l])) {
      ok &=
          lanes[l].TakeMagnitude(model, block.contexts[i[l]], d + first[l] + lanes[l].changed - 1);
    }
  }
#pragma GCC unroll 4
  for (unsigned l = 0; l < kCount; ++l) ok &= lanes[l].ReadPoint();
  *bad = !ok;
  return true;
}

template <bool kHistory>
bool GetLanesAs(const LaneModel& model, const LaneBlock& block, LaneDecoder* lanes,
                unsigned lane_bits, uint16_t* at, uint64_t* d) {
  const StepWeights<kHistory> weights(model);
  const unsigned count = 1u << lane_bits;
  size_t first[kMaxLanes];
  for (unsigned l = 0; l < count; ++l) {
    lanes[l].cursor.Start(block, model, l, lane_bits);
    lanes[l].changed = 0;
    first[l] = lanes[l].cursor.at;
  }
  // Bit l: lane l is not done with the block.
  const unsigned all = (1u << count) - 1;
  for (unsigned open = all; open != 0;) {
    bool bad = false;
    while (open == (1u << kMaxLanes) - 1 &&
           GetChanges<kHistory, kMaxLanes>(model, block, weights, lanes, first, at, d, &bad)) {
      if (HWY_UNLIKELY(bad)) return false;
    }
    for (unsigned left = open; left != 0; left &= left - 1) {
      const auto l = static_cast<unsigned>(std::countr_zero(left));
      const LaneStep step = GetEvent(model, block, weights, lanes[l], at + first[l], d + first[l]);
      if (HWY_LIKELY(step == LaneStep::kMore)) continue;
      if (step == LaneStep::kBad) return false;
      open &= ~(1u << l);
    }
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
