// The search for the element in a block where a tight lane's sum of weights passes a value;
// compiled once per target. Costs 2 to 4 ns. The rule is FindSum's in kernels/cpu/tight_lanes.h.
#include "hwy/highway.h"
#include "kernels/cpu/tight_lanes.h"

#if defined(DELTAWIRE_KERNELS_CPU_HIGHWAY_LANE_SEARCH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_HIGHWAY_LANE_SEARCH_INL_H_
#undef DELTAWIRE_KERNELS_CPU_HIGHWAY_LANE_SEARCH_INL_H_
#else
#define DELTAWIRE_KERNELS_CPU_HIGHWAY_LANE_SEARCH_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {

/// The element in a step of kSumStep elements whose weight takes the sum above a value.
struct FoundInStep {
  size_t index = 0;    ///< kSumStep: none
  uint32_t after = 0;  ///< sum of the weights up to and including it; 0 if there is none
  uint32_t weight = 0;
};

#if HWY_TARGET <= HWY_AVX3
/// Returns the prefix sums of 16 numbers. Its additions have a shorter chain than four shifts
/// across the whole vector.
HWY_INLINE __m512i RunningSums(__m512i v) {
  v = _mm512_add_epi32(v, _mm512_bslli_epi128(v, 4));
  v = _mm512_add_epi32(v, _mm512_bslli_epi128(v, 8));
  const __m512i first = _mm512_maskz_permutexvar_epi32(0xfff0, _mm512_set1_epi32(3), v);
  const __m512i second = _mm512_maskz_permutexvar_epi32(0xff00, _mm512_set1_epi32(7), v);
  const __m512i third = _mm512_maskz_permutexvar_epi32(0xf000, _mm512_set1_epi32(11), v);
  return _mm512_add_epi32(_mm512_add_epi32(v, first), _mm512_add_epi32(second, third));
}

template <bool kHistory>
class StepWeights {
 public:
  explicit StepWeights(const LaneModel& model) : plain_(_mm512_loadu_si512(model.weights)) {
    if constexpr (kHistory) {
      for (unsigned row = 1; row < kHistoryRows; ++row) {
        rows_[row - 1] = _mm512_loadu_si512(model.weights + kClasses * row);
      }
    }
  }
  HWY_INLINE __m512i Of(const uint8_t* contexts) const {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(contexts));
    const __m512i index = _mm512_cvtepu8_epi32(bytes);
    // kNoWeight looks up the weight of its lowest four bits, which no search reaches.
    __m512i weights = _mm512_permutexvar_epi32(index, plain_);
    if constexpr (kHistory) {
      // Looks up one row's table at a time: a gather takes longer.
      const __m128i row_of = _mm_and_si128(bytes, _mm_set1_epi8(7 << 4));
      for (int row = 1; row < int{kHistoryRows}; ++row) {
        const auto in_row = _mm_cmpeq_epi8_mask(row_of, _mm_set1_epi8(static_cast<char>(row << 4)));
        weights = _mm512_mask_permutexvar_epi32(weights, in_row, index, rows_[row - 1]);
      }
    }
    return weights;
  }
  /// Returns the sum of the weights of the first `count` < kSumStep elements.
  HWY_INLINE uint32_t SumOf(const uint8_t* contexts, size_t count) const {
    const auto mask = static_cast<__mmask16>((1u << count) - 1);
    const __m512i weights = _mm512_maskz_mov_epi32(mask, Of(contexts));
    return static_cast<uint32_t>(_mm512_reduce_add_epi32(weights));
  }
  HWY_INLINE FoundInStep Find(const uint8_t* contexts, uint32_t sum) const {
    const __m512i weights = Of(contexts);
    const __m512i after = RunningSums(weights);
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
  __m512i plain_;
  __m512i rows_[kHistory ? kHistoryRows - 1 : 1];
};

/// Returns the last step, from `step` on, that begins with a sum of at most `most`, which is eight
/// times the same.
HWY_INLINE size_t FindStep(const LaneBlock& block, size_t step, size_t last, __m512i most) {
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
HWY_INLINE size_t FindStep(const LaneBlock& block, size_t step, size_t last, uint64_t sum) {
  return FindStep(block, step, last, _mm512_set1_epi64(static_cast<int64_t>(sum)));
}
#else
template <bool kHistory>
class StepWeights {
 public:
  explicit StepWeights(const LaneModel& model) : model_(model) {}
  HWY_INLINE uint32_t SumOf(const uint8_t* contexts, size_t count) const {
    uint32_t sum = 0;
    // Always examines the same elements: that is cheaper than a loop of unpredictable length.
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

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAWIRE_KERNELS_CPU_HIGHWAY_LANE_SEARCH_INL_H_
