// The tight codec's lanes decoded in vectors of AVX-512: a change of four lanes at a time, one lane
// per 64 bits. It covers payloads without history, which needs more tables. Costs 15 to 20 ns per
// change. The rules are those of kernels/cpu/tight_lanes.h; guesses are checked exactly.
#include "hwy/highway.h"
#include "kernels/cpu/highway/intervals-inl.h"
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

/// The next block's classes and sums, computed in pieces after every round. A decoder's rounds are
/// one long dependency chain, so the processor has room for independent work.
class WorkAhead {
 public:
  /// REQUIRES: lanes[i].changed are still the changes of the block before.
  WorkAhead(const LaneBlock& block, const LaneDecoder* lanes, unsigned count)
      : ahead_(*block.ahead) {
    size_t rounds = 0;  // if this block resembles the one before
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

/// A lane of a block that is not done, and the destination of its changes.
struct OpenLane {
  LaneDecoder* lane;
  uint16_t* at;
  uint64_t* d;
};

#if HWY_TARGET <= HWY_AVX3

/// Logarithms to base 2 in S's unit: a table for the highest four bits after the leading one, and a
/// polynomial for the rest.
struct LogTables {
  static constexpr double kOctave = uint32_t{1} << kOctaveBits;
  static constexpr double kLn2 = 0.6931471805599453;
  alignas(64) float inverse[16] = {};  ///< of the middle of each sixteenth of [1, 2)
  alignas(64) float log[16] = {};      ///< of that middle

  constexpr LogTables() {
    for (int i = 0; i < 16; ++i) {
      inverse[i] = static_cast<float>(1 / (1 + (i + 0.5) / 16));
      // ln x = 2 artanh((x - 1) / (x + 1))
      const double y = (inverse[i] - 1.0) / (inverse[i] + 1.0);
      double power = y, ln = 0;
      for (int k = 1; k < 40; k += 2, power *= y * y) ln += 2 * power / k;
      log[i] = static_cast<float>(-ln / kLn2 * kOctave);
    }
  }
};
inline constexpr LogTables kLogTables;

/// The logarithms of four numbers. Whole octaves are separate, since a float has too few bits for
/// both.
struct Logs {
  HWY_INLINE explicit Logs(__m256i numbers) {
    const __m128i bits = _mm_castps_si128(_mm256_cvtepu64_ps(numbers));
    const __m512i slot = _mm512_castsi128_si512(_mm_srli_epi32(bits, 19));
    const auto look_up = [slot](const float* table) {
      return _mm512_castps512_ps128(_mm512_permutexvar_ps(slot, _mm512_load_ps(table)));
    };
    const __m128 one_to_two = _mm_castsi128_ps(
        _mm_or_si128(_mm_and_si128(bits, _mm_set1_epi32(0x7fffff)), _mm_set1_epi32(0x3f800000)));
    const __m128 r = _mm_fmsub_ps(one_to_two, look_up(kLogTables.inverse), _mm_set1_ps(1));
    // ln(1 + r) = r - r^2 / 2 + r^3 / 3, whose halves are independent.
    constexpr double kUnit = LogTables::kOctave / LogTables::kLn2;
    const auto coefficient = [](double c) { return _mm_set1_ps(static_cast<float>(c)); };
    const __m128 low = _mm_fmadd_ps(r, coefficient(kUnit), look_up(kLogTables.log));
    const __m128 high = _mm_fmadd_ps(r, coefficient(kUnit / 3), coefficient(-kUnit / 2));
    octaves = _mm_srli_epi32(bits, 23);
    part = _mm_fmadd_ps(_mm_mul_ps(r, r), high, low);
  }
  __m128i octaves;  ///< whole ones, all with the same offset
  __m128 part;      ///< of an octave, in S's unit
};

/// Decodes changes of up to four lanes at a time.
class LaneRounds {
 public:
  LaneRounds(const LaneModel& model, const LaneBlock& block) : model_(model), block_(block) {
    alignas(64) uint32_t packed[kClasses], longer[kClasses];
    for (unsigned c = 0; c < kClasses; ++c) {
      packed[c] = model.weights[c] << 8 | c;
      longer[c] = model.longer[c][1];
    }
    packed_ = _mm512_load_si512(packed);
    longer_ = _mm512_load_si512(longer);
  }

  /// Loads the lanes' states. REQUIRES: 1 <= count <= 4 lanes.
  void Begin(const OpenLane* open, unsigned count) {
    open_ = open;
    count_ = count;
    taken_ = 0;
    base_ = open[0].lane->coder.data();
    for (unsigned s = 0; s < kSlots; ++s) {
      // Slots without a lane repeat the first lane's work and write the same results.
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
  }
  /// Decodes changes until some lanes need care, and returns which.
  unsigned Take(const WorkAhead& ahead);
  /// Stores the lanes' states, and reads the next points of those that need care, because the
  /// rounds do not use points. Returns false when a stream is malformed.
  bool End(unsigned care) {
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
      if ((care >> s & 1) != 0) ok &= lane.ReadPoint();
    }
    return ok;
  }

 private:
  static constexpr unsigned kSlots = 4;
  static constexpr __mmask8 kAll = (1u << kSlots) - 1;

  /// Returns the approximate values of S at the lanes' next events: S = -log2(share), where share
  /// is the fraction of the range below the number. Off by a few units at most if the numbers have
  /// 32 bits or more. kSkipAt or more: not a change.
  static HWY_INLINE __m128i Guess(__m256i offset, __m256i range) {
    const Logs all(range), below(offset);
    const __m128i octaves = _mm_slli_epi32(_mm_sub_epi32(all.octaves, below.octaves), kOctaveBits);
    const __m128i part = _mm_cvtps_epi32(_mm_sub_ps(all.part, below.part));
    return _mm_max_epi32(_mm_add_epi32(octaves, part), _mm_setzero_si128());
  }
  /// Returns the bits by which to normalize ranges: their leading zeros in whole bytes, from the
  /// exponent of a double. The bit below the highest one is cleared, so that no rounding reaches a
  /// power of two.
  static HWY_INLINE __m256i ShiftOf(__m256i range) {
    const __m256i safe = _mm256_andnot_si256(_mm256_srli_epi64(range, 1), range);
    const __m256i exponent = _mm256_srli_epi64(_mm256_castpd_si256(_mm256_cvtepu64_pd(safe)), 52);
    return _mm256_and_si256(_mm256_sub_epi64(_mm256_set1_epi64x(1023 + 63), exponent),
                            _mm256_set1_epi64x(56));
  }
  /// Combines four numbers of 32 bits, each the lowest of a vector.
  static HWY_INLINE __m128i Lowest(const __m128i (&v)[kSlots]) {
    return _mm_unpacklo_epi64(_mm_unpacklo_epi32(v[0], v[1]), _mm_unpacklo_epi32(v[2], v[3]));
  }
  struct Coders {
    __m256i offset, range;
    __m256i next;  ///< the next bytes of the streams, from base_
  };
  struct Changes {
    size_t at[kSlots];
    __m256i behind;  ///< sum of the weights up to and including the element
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
  /// Takes the changes' intervals and returns 0, unless some do not contain the coders' numbers:
  /// then returns which.
  static HWY_INLINE unsigned TakeIntervals(const Changes& changes, __m256i origin, Coders* c);
  /// Decisions, as lane masks: all bits are set for yes.
  struct Decisions {
    __m256i negative, longer;
  };
  /// Takes the decisions "d < 0" and "L > 1". The lower one of offset and offset - bound is the
  /// offset after a decision, since the difference wraps on yes. Both bounds that the second
  /// decision can have are computed in parallel with the first one.
  HWY_INLINE Decisions Decide(__m128i cls, Coders* c) const {
    static_assert(kEven == uint32_t{1} << (kDecisionBits - 1));
    const __m256i p = _mm256_cvtepu32_epi64(
        _mm512_castsi512_si128(_mm512_permutexvar_epi32(_mm512_castsi128_si512(cls), longer_)));
    const auto bound_of = [p](__m256i range) {
      return _mm256_mullo_epi64(_mm256_srli_epi64(range, kDecisionBits), p);
    };
    const auto behind = [](__m256i offset, __m256i bound) {
      return _mm256_min_epu64(offset, _mm256_sub_epi64(offset, bound));
    };
    Decisions yes;
    const __m256i down =
        _mm256_slli_epi64(_mm256_srli_epi64(c->range, kDecisionBits), kDecisionBits - 1);
    const __m256i up = _mm256_sub_epi64(c->range, down);
    const __m256i first = behind(c->offset, down);
    yes.negative = _mm256_cmpeq_epi64(first, c->offset);
    const __m256i bound = _mm256_blendv_epi8(bound_of(up), bound_of(down), yes.negative);
    const __m256i range = _mm256_blendv_epi8(up, down, yes.negative);
    c->offset = behind(first, bound);
    yes.longer = _mm256_cmpeq_epi64(c->offset, first);
    c->range = _mm256_blendv_epi8(_mm256_sub_epi64(range, bound), bound, yes.longer);
    return yes;
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
  /// Takes the rest of a change with L > 1. REQUIRES: the coders were stored.
  HWY_INLINE void TakeMagnitude(unsigned slot, uint32_t cls, Coders* coders);

  const LaneModel& model_;
  const LaneBlock& block_;
  const OpenLane* open_ = nullptr;
  unsigned count_ = 0;
  const uint8_t* base_ = nullptr;
  size_t taken_ = 0;  ///< changes of each lane
  bool ok_ = true;
  alignas(32) uint64_t offset_[kSlots], range_[kSlots], origin_[kSlots];
  alignas(32) int64_t next_[kSlots];  ///< the next bytes of the streams, from base_
  alignas(32) int64_t most_[kSlots];  ///< the last place with eight bytes
  size_t at_[kSlots], last_[kSlots];
  uint16_t* at_out_[kSlots];
  uint64_t* d_out_[kSlots];
  __m512i packed_;  ///< weights and, in the lowest 8 bits, their classes
  __m512i longer_;  ///< probabilities of L > 1, by class
};

HWY_INLINE void LaneRounds::TakeMagnitude(unsigned slot, uint32_t cls, Coders* coders) {
  LaneDecoder& lane = *open_[slot].lane;
  RangeDecoder& coder = lane.coder;
  const int64_t stream = coder.data() - base_;
  coder.SetState(static_cast<size_t>(next_[slot] - stream), offset_[slot], range_[slot]);
  ok_ &= lane.TakeMagnitude(model_, static_cast<uint8_t>(cls), d_out_[slot] + taken_);
  // Avoids memory: a vector load waits until its last part is in the cache.
  const auto slots = static_cast<__mmask8>(1u << slot | (slot == 0 ? kAll << count_ & kAll : 0));
  const auto put = [slots](__m256i* to, uint64_t value) {
    *to = _mm256_mask_set1_epi64(*to, slots, static_cast<int64_t>(value));
  };
  put(&coders->offset, coder.offset());
  put(&coders->range, coder.range());
  put(&coders->next, static_cast<uint64_t>(stream) + coder.taken());
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
  const auto near_end = [&]() -> unsigned { return _mm256_cmpgt_epi64_mask(coders.next, most); };
  unsigned care = near_end();
  while (HWY_LIKELY(care == 0)) {
    // The guess does not need the bytes that normalization brings, so the two overlap.
    const __m128i guess = Guess(coders.offset, coders.range);
    Normalise(&coders);
    care = _mm_cmpge_epu32_mask(guess, _mm_set1_epi32(int{kSkipAt})) | near_end();
    Changes changes;
    care |= Find(_mm256_add_epi64(origin, _mm256_cvtepu32_epi64(guess)), &changes);
    if (HWY_UNLIKELY(care != 0)) break;
    // The guess was right if the intervals contain the numbers.
    care = TakeIntervals(changes, origin, &coders);
    if (HWY_UNLIKELY(care != 0)) break;
    origin = changes.behind;
    const Decisions yes = Decide(changes.cls, &coders);
    alignas(32) uint64_t d[kSlots];
    Store(d, _mm256_blendv_epi8(_mm256_set1_epi64x(1), minus_one, yes.negative));
#pragma GCC unroll 4
    for (unsigned s = 0; s < kSlots; ++s) {
      at_out_[s][taken_] = static_cast<uint16_t>(changes.at[s]);
      d_out_[s][taken_] = d[s];
      at_[s] = changes.at[s] + 1;
    }
    const auto longer = static_cast<unsigned>(_mm256_movemask_pd(_mm256_castsi256_pd(yes.longer)));
    if (HWY_UNLIKELY(longer != 0)) {
      Normalise(&coders);
      StoreCoders(coders);
      alignas(16) uint32_t cls[kSlots];
      _mm_store_si128(reinterpret_cast<__m128i*>(cls), changes.cls);
      for (unsigned s = 0; s < count_; ++s) {
        if ((longer >> s & 1) != 0) TakeMagnitude(s, cls[s], &coders);
      }
      care = near_end();
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
