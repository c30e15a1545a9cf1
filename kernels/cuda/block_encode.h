// The encoder of one block of 64Ki elements by a team of lanes: diff, encode (fast) and digest, on
// device and CPU. A Team (block_team.cuh, or the tests' emulation) runs phases over its lanes with
// a barrier after each; teams share nothing. Positions are kept as bitmaps, so old and new bytes
// are read from memory only once. The output is that of the scalar oracle, bit for bit.
#pragma once

#include "kernels/cuda/team.h"

namespace deltawire::kernels::gpu {

inline constexpr uint32_t kStageWords = 4096;
static_assert(kBlock % (16 * kLanes) == 0);

/// A block's row of the table, and its part of the digest.
struct BlockOut {
  uint64_t digest = 0;  ///< growth of the chunk's digest by this block
  uint32_t changed = 0;
  uint32_t large = 0;
  uint32_t bytes = 0;
  uint32_t raw = 0;  ///< 1: no stream was written; the raw differences are the stream
};

struct EncodeShared {
  alignas(16) uint32_t changed[kMapWords];
  uint32_t negative[kMapWords];
  uint32_t large[kMapWords];
  uint32_t stage[kStageWords];
  uint32_t lengths[kBitLengths];  ///< number of large changes by bits(abs(d) - 2)
};

/// Lengths in bits of the parts whose length depends on the values.
struct PartBits {
  uint32_t quotient = 0;        ///< zeros only
  uint32_t large_quotient = 0;  ///< zeros only
  uint32_t size = 0;
  DW_HD static PartBits Combine(const PartBits& a, const PartBits& b) {
    return {a.quotient + b.quotient, a.large_quotient + b.large_quotient, a.size + b.size};
  }
};

/// The first bit of each part of a stream.
struct StreamPlan {
  uint32_t k = 0, large_k = 0, j = 0;
  uint32_t sign = 0, quotient = 0, large_low = 0, large_quotient = 0, order = 0, size = 0;
  uint32_t bits = 0;
};

DW_HD StreamPlan PlanStream(uint32_t c, uint32_t e, uint32_t m, uint32_t j, const PartBits& sum) {
  StreamPlan p;
  p.k = RiceParameter(c, m);
  p.sign = c * p.k;
  p.quotient = p.sign + c;
  p.bits = p.large_low = p.quotient + sum.quotient + c;
  if (e == 0) return p;
  p.large_k = RiceParameter(e, c);
  p.j = j;
  p.large_quotient = p.large_low + e * p.large_k;
  p.order = p.large_quotient + sum.large_quotient + e;
  p.size = p.order + kOrderBits;
  p.bits = p.size + sum.size;
  return p;
}

/// Returns the smallest j for which at most half of the sizes have more than j bits.
DW_HD uint32_t SizeOrder(const uint32_t (&lengths)[kBitLengths], uint32_t e, uint32_t longest) {
  uint32_t above = 0, j = longest;
  while (j > 0 && above + lengths[j] <= e / 2) above += lengths[j--];
  return j;
}

struct GroupBits {
  uint32_t negative = 0, large = 0;
};

/// Classifies the changes `mask` of one group of eight elements, and adds up their lengths and
/// digest.
template <typename T>
DW_HD GroupBits LookAtGroup(EncodeShared& s, const T* o, const T* n, uint32_t group, uint32_t mask,
                            uint32_t first_byte, const KeyView& key, uint64_t* digest) {
  GroupBits bits;
  // Read the elements again, from the nearest cache: indexing registers would cost more.
  for (; mask != 0; mask &= mask - 1) {
    const uint32_t b = LowestBit(mask), element = group * 8 + b;
    const T before = o[element], after = n[element];
    const T d = static_cast<T>(after - before);
    const T size = Magnitude(d);
    bits.negative |= static_cast<uint32_t>(IsNegative(d)) << b;
    if (size >= 2) {
      bits.large |= 1u << b;
      AtomicAdd(&s.lengths[BitLength(static_cast<uint64_t>(size) - 2)], 1);
    }
    *digest +=
        DigestStep<T>(key, first_byte + element * static_cast<uint32_t>(sizeof(T)), before, after);
  }
  return bits;
}

/// Does one lane's part of the diff: every kLanes-th group of eight elements. Returns the digest's
/// growth.
template <typename T>
DW_HD uint64_t MarkChanges(EncodeShared& s, const T* o, const T* n, uint32_t m, uint32_t first_byte,
                           const KeyView& key, uint32_t lane) {
  uint64_t digest = 0;
  auto* changed = reinterpret_cast<uint8_t*>(s.changed);
  auto* negative = reinterpret_cast<uint8_t*>(s.negative);
  auto* large = reinterpret_cast<uint8_t*>(s.large);
  // The loads of two groups are in flight before the first group is examined.
  for (uint32_t g = lane; g < kBlock / 8; g += 2 * kLanes) {
    uint32_t masks[2];
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t first = (g + i * kLanes) * 8;
      masks[i] = first < m ? ChangedOfEight(o, n, first, m) : 0;
    }
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t group = g + i * kLanes;
      const GroupBits bits = LookAtGroup(s, o, n, group, masks[i], first_byte, key, &digest);
      changed[group] = static_cast<uint8_t>(masks[i]);
      negative[group] = static_cast<uint8_t>(bits.negative);
      large[group] = static_cast<uint8_t>(bits.large);
    }
  }
  return digest;
}

DW_HD Stretch Summarize(const EncodeShared& s, uint32_t lane) {
  Stretch all;
  for (uint32_t w = lane * kWordsPerLane; w < (lane + 1) * kWordsPerLane; ++w) {
    const uint32_t changed = s.changed[w], large = s.large[w];
    Stretch one;
    one.changed = PopCount(changed);
    one.large = PopCount(large);
    one.tail_unchanged = changed == 0 ? 32 : 32 - BitLength(changed);
    // Changes after the last large one.
    const uint32_t highest = BitLength(large);
    one.tail_small = highest >= 32 ? 0 : PopCount(changed >> highest);
    all = Stretch::Combine(all, one);
  }
  return all;
}

/// Calls f(element, gap, negative, large, large_gap) for the lane's changes, in order.
template <typename F>
DW_HD void ForEachChange(const EncodeShared& s, uint32_t lane, const Stretch& before, F f) {
  uint32_t next = lane * kPerLane - before.tail_unchanged;
  uint32_t small = before.tail_small;
  for (uint32_t w = lane * kWordsPerLane; w < (lane + 1) * kWordsPerLane; ++w) {
    const uint32_t negative = s.negative[w], large = s.large[w];
    for (uint32_t rest = s.changed[w]; rest != 0; rest &= rest - 1) {
      const uint32_t b = LowestBit(rest), element = w * 32 + b;
      const bool is_large = (large >> b & 1) != 0;
      f(element, element - next, (negative >> b & 1) != 0, is_large, small);
      small = is_large ? 0 : small + 1;
      next = element + 1;
    }
  }
}

template <typename T>
DW_HD uint64_t SizeAt(const T* o, const T* n, uint32_t element) {
  return static_cast<uint64_t>(Magnitude(static_cast<T>(n[element] - o[element]))) - 2;
}

template <typename T>
DW_HD PartBits MeasureLane(const EncodeShared& s, const T* o, const T* n, const StreamPlan& plan,
                           const Stretch& before, uint32_t lane) {
  PartBits sum;
  ForEachChange(s, lane, before,
                [&](uint32_t element, uint32_t gap, bool, bool large, uint32_t large_gap) {
                  sum.quotient += gap >> plan.k;
                  if (!large) return;
                  sum.large_quotient += large_gap >> plan.large_k;
                  sum.size += SizeCodeBits(SizeAt(o, n, element), plan.j);
                });
  return sum;
}

template <typename T>
DW_HD void EmitLane(const EncodeShared& s, const T* o, const T* n, const StreamPlan& plan,
                    const Stretch& before, PartBits bits, uint32_t lane, uint32_t* out) {
  uint32_t rank = before.changed, large_rank = before.large;
  ForEachChange(s, lane, before,
                [&](uint32_t element, uint32_t gap, bool negative, bool large, uint32_t large_gap) {
                  OrBits(out, rank * plan.k, gap, plan.k);
                  if (negative) OrBits(out, plan.sign + rank, 1, 1);
                  bits.quotient += gap >> plan.k;
                  OrBits(out, plan.quotient + bits.quotient + rank, 1, 1);
                  ++rank;
                  if (!large) return;
                  OrBits(out, plan.large_low + large_rank * plan.large_k, large_gap, plan.large_k);
                  bits.large_quotient += large_gap >> plan.large_k;
                  OrBits(out, plan.large_quotient + bits.large_quotient + large_rank, 1, 1);
                  ++large_rank;
                  const uint64_t v = SizeAt(o, n, element);
                  OrSizeCode(out, plan.size + bits.size, v, plan.j);
                  bits.size += SizeCodeBits(v, plan.j);
                });
}

/// Encodes the whole block. `slot` has room for m * sizeof(T) bytes, rounded up to 4, and receives
/// the stream of a sparse block. `first_byte` is the block's offset in its chunk.
template <typename T, typename Team>
DW_HD BlockOut EncodeBlock(Team& team, EncodeShared& s, const T* o, const T* n, uint32_t m,
                           uint32_t first_byte, const KeyView& key, uint32_t* slot) {
  typename Team::template PerLane<SumU64> digest;
  typename Team::template PerLane<Stretch> before;
  typename Team::template PerLane<PartBits> bits;
  BlockOut result;

  team.Each([&](uint32_t lane) {
    for (uint32_t i = lane; i < kBitLengths; i += kLanes) s.lengths[i] = 0;
  });
  team.Each(
      [&](uint32_t lane) { digest[lane] = {MarkChanges(s, o, n, m, first_byte, key, lane)}; });
  team.Each([&](uint32_t lane) { before[lane] = Summarize(s, lane); });
  const Stretch all = team.ExclusiveScan(before);
  if (all.changed == 0) return result;
  result.changed = all.changed;
  result.digest = team.ExclusiveScan(digest).v;

  const uint32_t j = all.large == 0 ? 0 : SizeOrder(s.lengths, all.large, 8 * sizeof(T));
  StreamPlan plan = PlanStream(all.changed, all.large, m, j, {});
  team.Each([&](uint32_t lane) { bits[lane] = MeasureLane(s, o, n, plan, before[lane], lane); });
  plan = PlanStream(all.changed, all.large, m, j, team.ExclusiveScan(bits));
  result.bytes = (plan.bits + 7) / 8;
  if (result.bytes >= m * sizeof(T)) {
    result.bytes = m * static_cast<uint32_t>(sizeof(T));
    result.raw = 1;
    return result;
  }
  result.large = all.large;

  // Lanes write to the same words. In shared memory that costs little, and the finished stream is
  // then copied to the slot once, in order.
  const uint32_t words = (result.bytes + 3) / 4;
  uint32_t* out = words <= kStageWords ? s.stage : slot;
  team.Each([&](uint32_t lane) {
    for (uint32_t i = lane; i < words; i += kLanes) out[i] = 0;
  });
  team.Each([&](uint32_t lane) {
    if (lane == 0 && all.large != 0) OrBits(out, plan.order, plan.j, kOrderBits);
    EmitLane(s, o, n, plan, before[lane], bits[lane], lane, out);
  });
  if (out == slot) return result;
  team.Each([&](uint32_t lane) {
    for (uint32_t i = lane; i < words; i += kLanes) slot[i] = out[i];
  });
  return result;
}

}  // namespace deltawire::kernels::gpu
