// The tight codec's lanes in vectors of AVX-512: a change of four lanes at a time, a lane in each
// 64 bits, and the intervals of eight changes to encode. Without history, which has more tables to
// look into. Works in the caller's memory, in any thread. Cost: 5 ns per change to encode, and 15
// to 20 to decode. Source of every rule: kernels/cpu/tight_lanes.h; guesses are checked exactly.
#include "hwy/highway.h"
#include "kernels/cpu/highway/lane_search-inl.h"
#include "kernels/cpu/tight_lanes.h"

#if defined(DELTAWIRE_KERNELS_CPU_HIGHWAY_LANE_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_HIGHWAY_LANE_VECTORS_INL_H_
#undef DELTAWIRE_KERNELS_CPU_HIGHWAY_LANE_VECTORS_INL_H_
#else
#define DELTAWIRE_KERNELS_CPU_HIGHWAY_LANE_VECTORS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {

/// The next block's classes and sums, a piece after every round: a decoder's rounds are one long
/// chain, beside which the processor has room for work that does not belong to it.
class WorkAhead {
 public:
  /// REQUIRES: lanes[i].changed are still the changes of the block before.
  WorkAhead(const LaneBlock& block, const LaneDecoder* lanes, unsigned count)
      : ahead_(*block.ahead) {
    size_t rounds = 0;  // if this block is like the one before
    for (unsigned l = 0; l < count; ++l) rounds = std::max<size_t>(rounds, lanes[l].changed);
    const size_t piece = rounds == 0 ? kMost : ahead_.left / rounds + 1;
    piece_ = std::min((piece + kLeast - 1) / kLeast * kLeast, kMost);
  }
  HWY_INLINE void Work() const {
    if (ahead_.left > 0) ahead_.work(ahead_.chunk, piece_);
  }

 private:
  static constexpr size_t kLeast = 128;  // two vectors of bytes; a multiple of kSumStep
  static constexpr size_t kMost = 1024;
  AheadWork& ahead_;
  size_t piece_;
};

/// A lane of a block that is not done, and where its changes go.
struct OpenLane {
  LaneDecoder* lane;
  uint16_t* at;
  uint64_t* d;
};

#if HWY_TARGET <= HWY_AVX3

/// Survival of each of eight sums, or of four.
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

/// Where the figures of eight changes go: see PutPart.
struct IntervalRows {
  uint32_t *after, *share, *sign, *longer;
  uint64_t *sum, *before;
};

/// Makes the intervals of eight changes at a time.
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

  /// `origin`: where S was 0 for the first of them. Returns the same for the change behind them.
  HWY_INLINE uint64_t Make(const uint16_t* at, const uint64_t* d, uint64_t origin,
                           IntervalRows to) const {
    const __m512i none = _mm512_setzero_si512();
    const __m512i i = _mm512_cvtepu16_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
    const __m512i sums =
        _mm512_inserti64x4(_mm512_castsi256_si512(SumsInStep(at)), SumsInStep(at + 4), 1);
    const __m512i starts =
        _mm512_i64gather_epi64(_mm512_srli_epi64(i, 4), block_.before, sizeof(*block_.before));
    const __m512i before = _mm512_add_epi64(starts, sums);
    const __m512i cls =
        _mm512_and_si512(_mm512_i64gather_epi64(i, block_.contexts, 1), _mm512_set1_epi64(15));
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
  /// For each of four elements, the sum of the weights before it in its step.
  HWY_INLINE __m256i SumsInStep(const uint16_t* at) const {
    static_assert(kSumStep == 16);
    const auto step = [&](size_t k) {
      const uint8_t* from = block_.contexts + at[k] / kSumStep * kSumStep;
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    };
    __m512i contexts = _mm512_castsi128_si512(step(0));
    contexts = _mm512_inserti32x4(contexts, step(1), 1);
    contexts = _mm512_inserti32x4(contexts, step(2), 2);
    contexts = _mm512_inserti32x4(contexts, step(3), 3);
    // Bytes below the element's own place in its step count.
    const __m128i places =
        _mm_and_si128(_mm_cvtepu16_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))),
                      _mm_set1_epi32(kSumStep - 1));
    const __m512i each =
        _mm512_permutexvar_epi32(_mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0),
                                 _mm512_castsi128_si512(places));
    const __m512i counts = _mm512_shuffle_epi8(each, _mm512_setzero_si512());
    const __m512i iota =
        _mm512_broadcast_i32x4(_mm_set_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
    const __mmask64 below = _mm512_cmplt_epu8_mask(iota, counts);
    const auto part = [&](size_t b) {
      return _mm512_sad_epu8(_mm512_maskz_shuffle_epi8(below, bytes_[b], contexts),
                             _mm512_setzero_si512());
    };
    const __m512i halves = _mm512_add_epi64(
        part(0), _mm512_add_epi64(_mm512_slli_epi64(part(1), 8), _mm512_slli_epi64(part(2), 16)));
    const __m512i both = _mm512_add_epi64(halves, _mm512_shuffle_epi32(halves, _MM_PERM_BADC));
    return _mm512_castsi512_si256(_mm512_maskz_compress_epi64(0x55, both));
  }

  const LaneBlock& block_;
  __m512i weights_, longer_, mask_;
  __m512i bytes_[3];  ///< the weights' bytes, by class
  __m128i sign_;
};

/// How a lane's S follows from the share of its range that lies below the number: S = -log2(share),
/// by a table for the fraction's highest four bits and a polynomial for what is left. It is a guess
/// that is off by at most 4.
struct GuessTables {
  static constexpr double kOctave = uint32_t{1} << kOctaveBits;
  static constexpr double kLn2 = 0.6931471805599453;
  alignas(64) float inverse[16] = {};  ///< of the middle of each sixteenth of [1, 2)
  alignas(64) float sum[16] = {};      ///< log2 of it, in S's unit

  constexpr GuessTables() {
    for (int i = 0; i < 16; ++i) {
      inverse[i] = static_cast<float>(1 / (1 + (i + 0.5) / 16));
      // ln x = 2 artanh((x - 1) / (x + 1))
      const double y = (inverse[i] - 1.0) / (inverse[i] + 1.0);
      double power = y, ln = 0;
      for (int k = 1; k < 40; k += 2, power *= y * y) ln += 2 * power / k;
      sum[i] = static_cast<float>(ln / kLn2 * kOctave);
    }
  }
};
inline constexpr GuessTables kGuessTables;

/// Takes changes of up to four lanes at a time.
class LaneRounds {
 public:
  /// Takes the lanes' states; Finish gives them back. 1 <= count <= 4 lanes.
  LaneRounds(const LaneModel& model, const LaneBlock& block, const OpenLane* open, unsigned count)
      : model_(model), block_(block), open_(open), count_(count) {
    base_ = open[0].lane->coder.data();
    for (unsigned s = 0; s < kSlots; ++s) {
      // Slots without a lane do the first one's work as well, and write the same results.
      const OpenLane& slot = open[s < count ? s : 0];
      const RangeDecoder& coder = slot.lane->coder;
      offset_[s] = coder.offset();
      range_[s] = coder.range();
      const int64_t stream = coder.data() - base_;
      next_[s] = stream + static_cast<int64_t>(coder.taken());
      most_[s] = stream + static_cast<int64_t>(coder.size()) - 8;
      origin_[s] = slot.lane->cursor.origin;
      at_[s] = slot.lane->cursor.at;
      last_[s] = slot.lane->cursor.last;
      at_out_[s] = slot.at + slot.lane->changed;
      d_out_[s] = slot.d + slot.lane->changed;
    }
    alignas(64) uint32_t packed[kClasses], longer[kClasses];
    for (unsigned c = 0; c < kClasses; ++c) {
      packed[c] = model.weights[c] << 8 | c;
      longer[c] = model.longer[c][1];
    }
    packed_ = _mm512_load_si512(packed);
    longer_ = _mm512_load_si512(longer);
  }

  /// Takes changes until some lanes need care, and returns which.
  unsigned Take(const WorkAhead& ahead);
  /// Gives the lanes their states. False when a stream is malformed.
  bool Finish() {
    bool ok = ok_;
    for (unsigned s = 0; s < count_; ++s) {
      LaneDecoder& lane = *open_[s].lane;
      const int64_t stream = lane.coder.data() - base_;
      lane.coder.SetState(static_cast<size_t>(next_[s] - stream), offset_[s], range_[s]);
      if (taken_ > 0) {
        lane.cursor.at = at_[s];
        lane.cursor.origin = origin_[s];
        lane.cursor.sum = 0;
        lane.changed += static_cast<uint32_t>(taken_);
      }
      ok &= lane.ReadPoint();
    }
    return ok;
  }

 private:
  static constexpr unsigned kSlots = 4;
  static constexpr __mmask8 kAll = (1u << kSlots) - 1;

  /// The values of S at which the lanes' next events are, about; kSkipAt or more: not a change.
  static HWY_INLINE __m128i Guess(__m256i offset, __m256i range) {
    const __m128 share = _mm_div_ps(_mm256_cvtepu64_ps(offset), _mm256_cvtepu64_ps(range));
    const __m128i bits = _mm_castps_si128(share);
    const __m512i slot = _mm512_castsi128_si512(_mm_srli_epi32(bits, 19));
    const auto look_up = [slot](const float* table) {
      return _mm512_castps512_ps128(_mm512_permutexvar_ps(slot, _mm512_load_ps(table)));
    };
    const __m128 one_to_two = _mm_castsi128_ps(
        _mm_or_si128(_mm_and_si128(bits, _mm_set1_epi32(0x7fffff)), _mm_set1_epi32(0x3f800000)));
    const __m128 r = _mm_fmsub_ps(one_to_two, look_up(kGuessTables.inverse), _mm_set1_ps(1));
    const __m128i halvings = _mm_sub_epi32(_mm_set1_epi32(127), _mm_srli_epi32(bits, 23));
    constexpr double kUnit = GuessTables::kOctave / GuessTables::kLn2;
    const auto coefficient = [](double c) { return _mm_set1_ps(static_cast<float>(c)); };
    __m128 rest = _mm_fmadd_ps(r, coefficient(kUnit / 4), coefficient(-kUnit / 3));
    rest = _mm_fmadd_ps(r, rest, coefficient(kUnit / 2));
    rest = _mm_fmadd_ps(r, rest, coefficient(-kUnit));
    const __m128 octaves = _mm_fmadd_ps(
        _mm_cvtepi32_ps(halvings), coefficient(GuessTables::kOctave), look_up(kGuessTables.sum));
    const __m128 sum = _mm_fmadd_ps(r, rest, octaves);
    return _mm_cvttps_epi32(_mm_max_ps(sum, _mm_setzero_ps()));
  }
  /// By how many bits ranges are to be normalised: their leading zeros in whole bytes, out of the
  /// exponent of a double. Without the bit below the highest one no rounding reaches a power of
  /// two.
  static HWY_INLINE __m256i ShiftOf(__m256i range) {
    const __m256i safe = _mm256_andnot_si256(_mm256_srli_epi64(range, 1), range);
    const __m256i exponent = _mm256_srli_epi64(_mm256_castpd_si256(_mm256_cvtepu64_pd(safe)), 52);
    return _mm256_and_si256(_mm256_sub_epi64(_mm256_set1_epi64x(1023 + 63), exponent),
                            _mm256_set1_epi64x(56));
  }
  /// Four numbers of 32 bits, each the lowest of a vector.
  static HWY_INLINE __m128i Lowest(const __m128i (&v)[kSlots]) {
    return _mm_unpacklo_epi64(_mm_unpacklo_epi32(v[0], v[1]), _mm_unpacklo_epi32(v[2], v[3]));
  }
  /// What the coders hold.
  struct Coders {
    __m256i offset, range;
    __m256i next;  ///< bytes of the streams that come next, from base_
  };
  /// The next change of each lane.
  struct Changes {
    size_t at[kSlots];
    __m256i behind;  ///< sum of the weights up to and with the element
    __m256i weight;
    __m128i cls;
  };
  static HWY_INLINE __m256i Load(const void* p) {
    return _mm256_load_si256(static_cast<const __m256i*>(p));
  }
  static HWY_INLINE void Store(void* p, __m256i v) {
    _mm256_store_si256(static_cast<__m256i*>(p), v);
  }
  HWY_INLINE void LoadCoders(Coders* c) const { *c = {Load(offset_), Load(range_), Load(next_)}; }
  HWY_INLINE void StoreCoders(const Coders& c) {
    Store(offset_, c.offset);
    Store(range_, c.range);
    Store(next_, c.next);
  }

  /// Finds the changes at these sums; returns the lanes whose parts end before.
  HWY_INLINE unsigned Find(__m256i sums, Changes* found) const;
  /// Takes the changes' intervals, unless some do not hold the coders' numbers: returns which.
  static HWY_INLINE unsigned TakeIntervals(const Changes& changes, __m256i origin, Coders* c);
  /// A decision in each lane; returns where it is yes.
  static HWY_INLINE __mmask8 Decide(__m256i bound, Coders* c) {
    const __mmask8 no = _mm256_cmpge_epu64_mask(c->offset, bound);
    c->offset = _mm256_mask_sub_epi64(c->offset, no, c->offset, bound);
    c->range = _mm256_mask_sub_epi64(bound, no, c->range, bound);
    return static_cast<__mmask8>(~no & kAll);
  }
  /// The bound of the decision L > 1.
  HWY_INLINE __m256i LongerBound(__m128i cls, const Coders& c) const {
    const __m256i p = _mm256_cvtepu32_epi64(
        _mm512_castsi512_si128(_mm512_permutexvar_epi32(_mm512_castsi128_si512(cls), longer_)));
    return _mm256_mullo_epi64(_mm256_srli_epi64(c.range, kDecisionBits), p);
  }
  HWY_INLINE void Normalise(Coders* c) const {
    const __m256i high_first = _mm256_broadcastsi128_si256(
        _mm_set_epi8(8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
    const __m256i shift = ShiftOf(c->range);
    const __m256i bytes = _mm256_shuffle_epi8(
        _mm256_i64gather_epi64(reinterpret_cast<const long long*>(base_), c->next, 1), high_first);
    const __m256i come = _mm256_srlv_epi64(_mm256_srli_epi64(bytes, 1),
                                           _mm256_sub_epi64(_mm256_set1_epi64x(63), shift));
    c->offset = _mm256_or_si256(_mm256_sllv_epi64(c->offset, shift), come);
    c->range = _mm256_sllv_epi64(c->range, shift);
    c->next = _mm256_add_epi64(c->next, _mm256_srli_epi64(shift, 3));
  }
  void TakeMagnitudes(unsigned longer, __m128i classes);

  const LaneModel& model_;
  const LaneBlock& block_;
  const OpenLane* const open_;
  const unsigned count_;
  const uint8_t* base_;
  size_t taken_ = 0;  ///< changes of each lane
  bool ok_ = true;
  alignas(32) uint64_t offset_[kSlots], range_[kSlots], origin_[kSlots];
  alignas(32) int64_t next_[kSlots];  ///< bytes of the streams that come next, from base_
  alignas(32) int64_t most_[kSlots];  ///< the last place with eight bytes
  size_t at_[kSlots], last_[kSlots];
  uint16_t* at_out_[kSlots];
  uint64_t* d_out_[kSlots];
  __m512i packed_;  ///< weights and, in the lowest 8 bits, their classes
  __m512i longer_;  ///< probabilities of L > 1, by class
};

[[gnu::noinline]] inline void LaneRounds::TakeMagnitudes(unsigned longer, __m128i classes) {
  alignas(16) uint32_t cls[kSlots];
  _mm_store_si128(reinterpret_cast<__m128i*>(cls), classes);
  for (unsigned s = 0; s < count_; ++s) {
    if ((longer >> s & 1) == 0) continue;
    LaneDecoder& lane = *open_[s].lane;
    const int64_t stream = lane.coder.data() - base_;
    lane.coder.SetState(static_cast<size_t>(next_[s] - stream), offset_[s], range_[s]);
    ok_ &= lane.TakeMagnitude(model_, static_cast<uint8_t>(cls[s]), d_out_[s] + taken_);
    next_[s] = stream + static_cast<int64_t>(lane.coder.taken());
    offset_[s] = lane.coder.offset();
    range_[s] = lane.coder.range();
  }
  for (unsigned s = count_; s < kSlots; ++s) {
    next_[s] = next_[0];
    offset_[s] = offset_[0];
    range_[s] = range_[0];
  }
}

HWY_INLINE unsigned LaneRounds::Find(__m256i sums, Changes* found) const {
  const __m512i target = _mm512_castsi256_si512(sums);
  unsigned care = 0;
  __m128i afters[kSlots], packs[kSlots];
  int64_t start[kSlots];
#pragma GCC unroll 4
  for (unsigned s = 0; s < kSlots; ++s) {
    const __m512i most = _mm512_permutexvar_epi64(_mm512_set1_epi64(s), target);
    const size_t step = FindStep(block_, at_[s] / kSumStep, last_[s], most);
    start[s] = static_cast<int64_t>(block_.before[step]);
    const uint8_t* contexts = block_.contexts + step * kSumStep;
    const __m512i index =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(contexts)));
    const __m512i packed = _mm512_permutexvar_epi32(index, packed_);
    const __m512i after = RunningSums(_mm512_srli_epi32(packed, 8));
    const __m512i rest = _mm512_sub_epi32(
        _mm512_permutexvar_epi32(_mm512_set1_epi32(2 * static_cast<int>(s)), target),
        _mm512_set1_epi32(static_cast<int>(start[s])));
    const __mmask16 beyond = _mm512_cmpgt_epu32_mask(after, rest);
    afters[s] = _mm512_castsi512_si128(_mm512_maskz_compress_epi32(beyond, after));
    packs[s] = _mm512_castsi512_si128(_mm512_maskz_compress_epi32(beyond, packed));
    const auto in_step = static_cast<size_t>(std::countr_zero(uint32_t{beyond} | 1u << kSumStep));
    found->at[s] = step * kSumStep + in_step;
    care |= unsigned{found->at[s] >= last_[s]} << s;
  }
  const __m128i pack = Lowest(packs);
  found->weight = _mm256_cvtepu32_epi64(_mm_srli_epi32(pack, 8));
  found->cls = _mm_and_si128(pack, _mm_set1_epi32(255));
  found->behind = _mm256_add_epi64(_mm256_set_epi64x(start[3], start[2], start[1], start[0]),
                                   _mm256_cvtepu32_epi64(Lowest(afters)));
  return care;
}

HWY_INLINE unsigned LaneRounds::TakeIntervals(const Changes& changes, __m256i origin, Coders* c) {
  const __m256i sum_after = _mm256_sub_epi64(changes.behind, origin);
  const __m256i low = SurvivalOf(sum_after);
  const __m256i high = SurvivalOf(_mm256_sub_epi64(sum_after, changes.weight));
  const __m256i unit = _mm256_srli_epi64(c->range, kEventBits);
  const __m256i range = _mm256_mullo_epi64(unit, _mm256_sub_epi64(high, low));
  const __m256i offset = _mm256_sub_epi64(c->offset, _mm256_mullo_epi64(unit, low));
  const __mmask8 wrong = _mm256_cmpge_epu64_mask(offset, range);
  if (HWY_LIKELY(wrong == 0)) {
    c->offset = offset;
    c->range = range;
  }
  return wrong;
}

inline unsigned LaneRounds::Take(const WorkAhead& ahead) {
  Coders coders;
  LoadCoders(&coders);
  __m256i origin = Load(origin_);
  const __m256i minus_one = _mm256_set1_epi64x(static_cast<int64_t>(model_.mask));
  const __m256i most = Load(most_);
  unsigned care = 0;
  for (;;) {
    const __m128i guess = Guess(coders.offset, coders.range);
    care = _mm_cmpge_epu32_mask(guess, _mm_set1_epi32(int{kSkipAt}));
    care |= _mm256_cmpgt_epi64_mask(coders.next, most);
    Changes changes;
    care |= Find(_mm256_add_epi64(origin, _mm256_cvtepu32_epi64(guess)), &changes);
    if (HWY_UNLIKELY(care != 0)) break;
    // Whether the intervals hold the numbers says whether the guess was right.
    care = TakeIntervals(changes, origin, &coders);
    if (HWY_UNLIKELY(care != 0)) break;
    origin = changes.behind;
    static_assert(kEven == uint32_t{1} << (kDecisionBits - 1));
    const __mmask8 negative =
        Decide(_mm256_slli_epi64(_mm256_srli_epi64(coders.range, kDecisionBits), kDecisionBits - 1),
               &coders);
    const __mmask8 longer = Decide(LongerBound(changes.cls, coders), &coders);
    Normalise(&coders);
    alignas(32) uint64_t d[kSlots];
    Store(d, _mm256_mask_blend_epi64(negative, _mm256_set1_epi64x(1), minus_one));
#pragma GCC unroll 4
    for (unsigned s = 0; s < kSlots; ++s) {
      at_out_[s][taken_] = static_cast<uint16_t>(changes.at[s]);
      d_out_[s][taken_] = d[s];
      at_[s] = changes.at[s] + 1;
    }
    if (HWY_UNLIKELY(longer != 0)) {
      StoreCoders(coders);
      TakeMagnitudes(longer, changes.cls);
      LoadCoders(&coders);
    }
    ++taken_;
    if (HWY_UNLIKELY(!ok_)) break;
    ahead.Work();
  }
  StoreCoders(coders);
  Store(origin_, origin);
  return care;
}

#endif  // HWY_TARGET <= HWY_AVX3

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAWIRE_KERNELS_CPU_HIGHWAY_LANE_VECTORS_INL_H_
