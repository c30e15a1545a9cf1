// The intervals of the tight codec's events in vectors of AVX-512: the survival function, and the
// encoder's inputs for eight changes. It covers payloads without history. Costs 5 ns per change.
// The rules are those of kernels/cpu/tight_lanes.h and survival.h.
#include "hwy/highway.h"
#include "kernels/cpu/tight_lanes.h"

#if defined(DELTAWIRE_KERNELS_CPU_HIGHWAY_INTERVALS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_HIGHWAY_INTERVALS_INL_H_
#undef DELTAWIRE_KERNELS_CPU_HIGHWAY_INTERVALS_INL_H_
#else
#define DELTAWIRE_KERNELS_CPU_HIGHWAY_INTERVALS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {

#if HWY_TARGET <= HWY_AVX3

/// Return the survival of each of eight sums, or of four.
HWY_INLINE __m512i SurvivalOf(__m512i sum) {
  const __m512i low = _mm512_set1_epi64(1023);
  const __m512i i = _mm512_and_si512(_mm512_srli_epi64(sum, 10), low);
  const __m512i entry = _mm512_i64gather_epi64(i, survival_internal::kFalls.data(), 8);
  const __m512i fall = _mm512_mul_epu32(_mm512_srli_epi64(entry, 32), _mm512_and_si512(sum, low));
  const __m512i value = _mm512_sub_epi64(_mm512_and_si512(entry, _mm512_set1_epi64(0xffffffff)),
                                         _mm512_srli_epi64(fall, 10));
  return _mm512_srlv_epi64(value, _mm512_srli_epi64(sum, kOctaveBits));
}
HWY_INLINE __m256i SurvivalOf(__m256i sum) {
  const __m256i low = _mm256_set1_epi64x(1023);
  const __m256i i = _mm256_and_si256(_mm256_srli_epi64(sum, 10), low);
  const auto* falls = reinterpret_cast<const long long*>(survival_internal::kFalls.data());
  const __m256i entry = _mm256_i64gather_epi64(falls, i, 8);
  const __m256i fall = _mm256_mul_epu32(_mm256_srli_epi64(entry, 32), _mm256_and_si256(sum, low));
  const __m256i value = _mm256_sub_epi64(_mm256_and_si256(entry, _mm256_set1_epi64x(0xffffffff)),
                                         _mm256_srli_epi64(fall, 10));
  return _mm256_srlv_epi64(value, _mm256_srli_epi64(sum, kOctaveBits));
}

/// The destinations for the values of eight changes: see PutPart.
struct IntervalRows {
  uint32_t *after, *share, *sign, *longer;
  uint64_t *sum, *before;
};

class IntervalMaker {
 public:
  IntervalMaker(const LaneModel& model, const LaneBlock& block)
      : block_(block),
        weights_(_mm512_loadu_si512(model.weights)),
        mask_(_mm512_set1_epi64(static_cast<int64_t>(model.mask))),
        sign_(_mm_cvtsi32_si128(static_cast<int>(model.bits - 1))) {
    alignas(64) uint32_t longer[kClasses];
    alignas(16) uint8_t bytes[3][kClasses];
    for (size_t c = 0; c < kClasses; ++c) {
      longer[c] = model.longer[c][1];
      for (size_t b = 0; b < 3; ++b) bytes[b][c] = static_cast<uint8_t>(model.weights[c] >> 8 * b);
    }
    longer_ = _mm512_load_si512(longer);
    for (size_t b = 0; b < 3; ++b) {
      bytes_[b] = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<__m128i*>(bytes[b])));
    }
  }

  /// `origin` is where S was 0 for the first change. Returns the origin for the change after the
  /// last.
  HWY_INLINE uint64_t Make(const uint16_t* at, const uint64_t* d, uint64_t origin,
                           IntervalRows to) const {
    const __m512i none = _mm512_setzero_si512();
    const InSteps low(*this, at), high(*this, at + 4);
    const __m512i even = _mm512_set_epi64(14, 12, 10, 8, 6, 4, 2, 0);
    // Loads of single numbers: a gather takes several times as many processor steps.
    const auto start = [&](size_t k) {
      return static_cast<int64_t>(block_.before[at[k] / kSumStep]);
    };
    const __m512i starts = _mm512_set_epi64(start(7), start(6), start(5), start(4), start(3),
                                            start(2), start(1), start(0));
    const __m512i before =
        _mm512_add_epi64(starts, _mm512_permutex2var_epi64(low.sums, even, high.sums));
    const __m512i cls = _mm512_and_si512(
        _mm512_permutex2var_epi64(low.contexts, even, high.contexts), _mm512_set1_epi64(15));
    const __mmask16 low_halves = 0x5555;
    const __m512i weight = _mm512_maskz_permutexvar_epi32(low_halves, cls, weights_);
    const __m512i behind = _mm512_add_epi64(before, weight);
    const __m512i origins =
        _mm512_alignr_epi64(behind, _mm512_set1_epi64(static_cast<int64_t>(origin)), 7);
    const __m512i sum = _mm512_sub_epi64(before, origins);
    const __m512i after = SurvivalOf(_mm512_add_epi64(sum, weight));
    const __m512i share = _mm512_sub_epi64(SurvivalOf(sum), after);
    const __m512i v = _mm512_loadu_si512(d);
    const __m512i negative = _mm512_srl_epi64(v, sign_);
    const __m512i flipped = _mm512_xor_si512(v, _mm512_sub_epi64(none, negative));
    const __m512i magnitude = _mm512_and_si512(_mm512_add_epi64(flipped, negative), mask_);
    const __mmask8 is_longer = _mm512_cmpgt_epu64_mask(magnitude, _mm512_set1_epi64(1));
    const __m512i p = _mm512_maskz_permutexvar_epi32(low_halves, cls, longer_);
    const __m512i longer =
        _mm512_mask_or_epi64(p, is_longer, p, _mm512_set1_epi64(int64_t{1} << 31));
    const auto put32 = [](uint32_t* out, __m512i value) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi64_epi32(value));
    };
    put32(to.after, after);
    put32(to.share, share);
    put32(to.sign, _mm512_slli_epi64(negative, 31));
    put32(to.longer, longer);
    _mm512_storeu_si512(to.sum, sum);
    _mm512_storeu_si512(to.before, before);
    return static_cast<uint64_t>(_mm_extract_epi64(_mm512_extracti64x2_epi64(behind, 3), 1));
  }

 private:
  /// The values that the steps give for four elements, each in the lower half of 128 bits.
  struct InSteps {
    HWY_INLINE InSteps(const IntervalMaker& maker, const uint16_t* at) {
      static_assert(kSumStep == 16);
      const auto step = [&](size_t k) {
        const uint8_t* from = maker.block_.contexts + at[k] / kSumStep * kSumStep;
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
      };
      __m512i steps = _mm512_castsi128_si512(step(0));
      steps = _mm512_inserti32x4(steps, step(1), 1);
      steps = _mm512_inserti32x4(steps, step(2), 2);
      steps = _mm512_inserti32x4(steps, step(3), 3);
      // An element's place in its step, repeated in 16 bytes.
      const __m128i places =
          _mm_and_si128(_mm_cvtepu16_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))),
                        _mm_set1_epi32(kSumStep - 1));
      const __m512i each =
          _mm512_permutexvar_epi32(_mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0),
                                   _mm512_castsi128_si512(places));
      const __m512i own = _mm512_shuffle_epi8(each, _mm512_setzero_si512());
      contexts = _mm512_shuffle_epi8(steps, own);
      const __m512i iota = _mm512_broadcast_i32x4(
          _mm_set_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
      const __mmask64 below = _mm512_cmplt_epu8_mask(iota, own);
      const auto part = [&](size_t b) {
        return _mm512_sad_epu8(_mm512_maskz_shuffle_epi8(below, maker.bytes_[b], steps),
                               _mm512_setzero_si512());
      };
      const __m512i halves = _mm512_add_epi64(
          part(0), _mm512_add_epi64(_mm512_slli_epi64(part(1), 8), _mm512_slli_epi64(part(2), 16)));
      sums = _mm512_add_epi64(halves, _mm512_shuffle_epi32(halves, _MM_PERM_BADC));
    }
    __m512i sums;      ///< of the weights before the element in its step
    __m512i contexts;  ///< the element's, in every byte
  };

  const LaneBlock& block_;
  __m512i weights_, longer_, mask_;
  __m512i bytes_[3];  ///< the weights' bytes, by class
  __m128i sign_;
};

#else

/// A stand-in for the vector version.
struct IntervalMaker {
  IntervalMaker(const LaneModel&, const LaneBlock&) {}
};

#endif  // HWY_TARGET <= HWY_AVX3

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAWIRE_KERNELS_CPU_HIGHWAY_INTERVALS_INL_H_
