// The decoder of one block by a team of lanes (team.h), on device and CPU. It hands each change to
// a sink, such as apply + digest. Unary codes are found by counting ones. To find size codes, every
// lane starts at some bit and sends the next lane the end of its codes, until no start moves. It
// never accesses memory out of bounds, whatever the stream. It misses some malformed streams, so
// validate first.
#pragma once

#include "kernels/cuda/team.h"

namespace deltawire::kernels::gpu {

inline constexpr uint32_t kWindowBits = 256;  ///< bits of size codes per lane and round
inline constexpr uint32_t kSampleEvery = 16;  ///< size codes from one sample to the next

struct BlockIn {
  const uint8_t* stream = nullptr;
  uint32_t changed = 0;
  uint32_t large = 0;
  uint32_t bytes = 0;
};

struct DecodeShared {
  alignas(16) uint32_t changed[kMapWords];  ///< bitmap by element
  uint32_t large[kMapWords];                ///< bitmap by rank among the changes
  uint32_t samples[kBlock / kSampleEvery];  ///< first bit of every kSampleEvery-th size code
  uint32_t start[kLanes];
  uint32_t entry;
  uint32_t end;
  uint32_t bad;
  uint32_t moved;
};

/// A part that codes `count` gaps among `places`; `low` and `quotient` are the first bits of its
/// lower bits and of its quotients.
struct RicePart {
  uint32_t count, places, k, low, quotient;
};

/// Sets the bit of every event in `marks`. Returns the first bit after the part; 0 when malformed.
template <typename Team>
DW_HD uint32_t DecodeRice(Team& team, DecodeShared& s, const BitReader& in, const RicePart& part,
                          uint32_t* marks) {
  uint32_t ranks = 0, lows = 0, at = part.quotient;
  while (ranks < part.count && at < in.bits()) {
    typename Team::template PerLane<SumU32> rank, low;
    team.Each([&](uint32_t lane) { rank[lane] = {PopCount(in.Load32(at + 32 * lane))}; });
    const uint32_t found = team.ExclusiveScan(rank).v;
    team.Each([&](uint32_t lane) {
      const uint32_t first = ranks + rank[lane].v;
      const uint32_t last = Least(first + PopCount(in.Load32(at + 32 * lane)), part.count);
      uint32_t sum = 0;
      for (uint32_t r = first; r < last; ++r) {
        sum += static_cast<uint32_t>(in.Load(part.low + r * part.k, part.k));
      }
      low[lane] = {sum};
    });
    const uint32_t low_found = team.ExclusiveScan(low).v;
    team.Each([&](uint32_t lane) {
      uint32_t r = ranks + rank[lane].v, sum = lows + low[lane].v;
      for (uint32_t rest = in.Load32(at + 32 * lane); rest != 0 && r < part.count;
           rest &= rest - 1, ++r) {
        const uint32_t bit = at + 32 * lane + LowestBit(rest);
        sum += static_cast<uint32_t>(in.Load(part.low + r * part.k, part.k));
        // Each zero before this one counts for 2^k places, each earlier one for the place itself.
        const uint64_t place = (uint64_t{bit - part.quotient - r} << part.k) + sum + r;
        if (place < part.places) {
          AtomicOr(&marks[place >> 5], 1u << (place & 31));
        } else {
          s.bad = 1;
        }
        if (r + 1 == part.count) s.end = bit + 1;
      }
    });
    ranks += found;
    lows += low_found;
    at += 32 * kLanes;
  }
  const uint32_t end = team.Share(s.end);
  return ranks < part.count || team.Share(s.bad) != 0 ? 0 : end;
}

/// Finds the first bit of every kSampleEvery-th of `count` size codes. Returns the first bit after
/// the last code; 0 when there are fewer codes.
template <typename Team>
DW_HD uint32_t SampleSizeCodes(Team& team, DecodeShared& s, const BitReader& in, uint32_t count,
                               uint32_t first_bit, uint32_t j) {
  uint32_t ranks = 0, entry = first_bit;
  for (uint32_t base = first_bit; ranks < count && base < in.bits(); base += kLanes * kWindowBits) {
    typename Team::template PerLane<SumU32> codes, end;
    team.Each([&](uint32_t lane) {
      s.start[lane] = lane == 0 ? entry : Least(base + lane * kWindowBits, in.bits());
    });
    uint32_t moved = 1;
    typename Team::template PerLane<SumU32> done;  // the start from which the lane has counted
    team.Each([&](uint32_t lane) { done[lane] = {0}; });
    while (moved != 0) {
      team.Each([&](uint32_t lane) {
        if (lane == 0) s.moved = 0;
        const uint32_t start = s.start[lane];
        if (done[lane].v == start) return;
        done[lane] = {start};
        const uint32_t limit = Least(base + (lane + 1) * kWindowBits, in.bits());
        uint32_t at = start, n = 0;
        for (; at < limit; ++n) at = SizeCodeEnd(in, at, j);
        codes[lane] = {n};
        end[lane] = {at};
      });
      team.Each([&](uint32_t lane) {
        if (lane + 1 == kLanes || s.start[lane + 1] == end[lane].v) return;
        s.start[lane + 1] = end[lane].v;
        s.moved = 1;
      });
      moved = team.Share(s.moved);
    }
    const uint32_t found = team.ExclusiveScan(codes).v;
    team.Each([&](uint32_t lane) {
      uint32_t at = s.start[lane], rank = ranks + codes[lane].v;
      const uint32_t limit = Least(base + (lane + 1) * kWindowBits, in.bits());
      for (; at < limit && rank < count; ++rank) {
        if (rank % kSampleEvery == 0) s.samples[rank / kSampleEvery] = at;
        at = SizeCodeEnd(in, at, j);
        if (rank + 1 == count) s.end = at;
      }
      if (lane + 1 == kLanes) s.entry = end[lane].v;
    });
    entry = team.Share(s.entry);
    ranks += found;
  }
  return ranks < count ? 0 : team.Share(s.end);
}

DW_HD uint32_t CountBits(const uint32_t* map, uint32_t first, uint32_t last) {
  uint32_t n = 0;
  while (first < last) {
    const uint32_t take = Least(32 - (first & 31), last - first);
    n += PopCount(static_cast<uint32_t>(LowBits(map[first >> 5] >> (first & 31), take)));
    first += take;
  }
  return n;
}

struct Applied {
  uint64_t digest = 0;
  bool ok = true;
};

/// A sink that changes a chunk's bytes. Every lane calls it, each for other elements of the block:
/// sink(element, difference) returns the growth of the chunk's digest.
template <typename T>
struct InPlace {
  T* data = nullptr;        ///< of the block
  uint32_t first_byte = 0;  ///< the block's offset in the chunk
  KeyView key;

  DW_HD uint64_t operator()(uint32_t element, T d) const {
    const T before = data[element], after = static_cast<T>(before + d);
    data[element] = after;
    return DigestStep<T>(key, first_byte + element * static_cast<uint32_t>(sizeof(T)), before,
                         after);
  }
};

/// Hands one lane's changes of a sparse block to `sink`.
template <typename T, typename Sink>
DW_HD Applied ApplyLane(const DecodeShared& s, const BitReader& in, uint32_t sign, uint32_t size,
                        uint32_t j, uint32_t rank, uint32_t large_rank, uint32_t lane,
                        const Sink& sink) {
  constexpr uint64_t kLargest = kLargestMagnitude<T>;
  Applied result;
  bool placed = false;
  uint32_t at = size;
  for (uint32_t w = lane * kWordsPerLane; w < (lane + 1) * kWordsPerLane; ++w) {
    for (uint32_t rest = s.changed[w]; rest != 0; rest &= rest - 1, ++rank) {
      const uint32_t element = w * 32 + LowestBit(rest);
      const bool negative = in.Load(sign + rank, 1) != 0;
      uint64_t magnitude = 1;
      if ((s.large[rank >> 5] >> (rank & 31) & 1) != 0) {
        if (!placed) {
          at = s.samples[large_rank / kSampleEvery];
          for (uint32_t i = large_rank % kSampleEvery; i != 0; --i) at = SizeCodeEnd(in, at, j);
          placed = true;
        }
        const SizeCode code = ReadSizeCode(in, at, j);
        at = code.end;
        magnitude = code.v + 2;
        if (!code.valid || code.v > kLargest - 2 || (magnitude == kLargest && !negative)) {
          result.ok = false;
          return result;
        }
      }
      result.digest += sink(element, static_cast<T>(negative ? 0 - magnitude : magnitude));
    }
  }
  return result;
}

/// Hands one lane's differences of a raw block to `sink`: those of every kLanes-th element.
template <typename T, typename Sink>
DW_HD uint64_t ApplyRawLane(const BitReader& in, uint32_t m, uint32_t lane, const Sink& sink) {
  constexpr uint32_t kBits = 8 * sizeof(T);
  uint64_t digest = 0;
  for (uint32_t i = lane; i < m; i += kLanes) {
    const T d = static_cast<T>(in.Load(i * kBits, kBits));
    if (d != 0) digest += sink(i, d);
  }
  return digest;
}

template <typename T, typename Team, typename Sink>
DW_HD bool ApplySparse(Team& team, DecodeShared& s, const BlockIn& block, uint32_t m,
                       const Sink& sink, uint64_t* digest) {
  const BitReader in(block.stream, block.bytes);
  const uint32_t c = block.changed, e = block.large;
  if (c > m || e > c) return false;
  team.Each([&](uint32_t lane) {
    for (uint32_t i = lane; i < kMapWords; i += kLanes) s.changed[i] = s.large[i] = 0;
    if (lane == 0) s.bad = s.end = 0;
  });
  const uint32_t k = RiceParameter(c, m), sign = c * k;
  const uint32_t large_low = DecodeRice(team, s, in, {c, m, k, 0, sign + c}, s.changed);
  if (large_low == 0) return false;
  uint32_t j = 0, size = 0;
  if (e != 0) {
    const uint32_t large_k = RiceParameter(e, c);
    const uint32_t order =
        DecodeRice(team, s, in, {e, c, large_k, large_low, large_low + e * large_k}, s.large);
    if (order == 0) return false;
    j = static_cast<uint32_t>(in.Load(order, kOrderBits));
    size = order + kOrderBits;
    if (SampleSizeCodes(team, s, in, e, size, j) == 0) return false;
  }
  typename Team::template PerLane<SumU32> rank, large_rank;
  typename Team::template PerLane<SumU64> grown;
  typename Team::template PerLane<SumU32> own;
  team.Each([&](uint32_t lane) {
    uint32_t n = 0;
    for (uint32_t w = 0; w < kWordsPerLane; ++w) n += PopCount(s.changed[lane * kWordsPerLane + w]);
    rank[lane] = own[lane] = {n};
  });
  team.ExclusiveScan(rank);
  team.Each([&](uint32_t lane) {
    const uint32_t r = rank[lane].v;
    large_rank[lane] = {e == 0 ? 0 : CountBits(s.large, r, r + own[lane].v)};
  });
  team.ExclusiveScan(large_rank);
  team.Each([&](uint32_t lane) {
    const Applied applied =
        ApplyLane<T>(s, in, sign, size, j, rank[lane].v, large_rank[lane].v, lane, sink);
    grown[lane] = {applied.digest};
    if (!applied.ok) s.bad = 1;
  });
  *digest = team.ExclusiveScan(grown).v;
  return team.Share(s.bad) == 0;
}

/// Hands all changes of a block of `m` elements to `sink`. Returns false when it found the stream
/// malformed; the sink may have got some changes by then.
template <typename T, typename Team, typename Sink>
DW_HD bool DecodeBlock(Team& team, DecodeShared& s, const BlockIn& block, uint32_t m,
                       const Sink& sink, uint64_t* digest) {
  *digest = 0;
  if (block.changed == 0) return true;
  if (block.bytes != m * sizeof(T)) return ApplySparse<T>(team, s, block, m, sink, digest);
  const BitReader in(block.stream, block.bytes);
  typename Team::template PerLane<SumU64> grown;
  team.Each([&](uint32_t lane) { grown[lane] = {ApplyRawLane<T>(in, m, lane, sink)}; });
  *digest = team.ExclusiveScan(grown).v;
  return true;
}

/// Applies the whole block to `data`, its elements; `first_byte` is its offset in the chunk.
template <typename T, typename Team>
DW_HD bool ApplyBlock(Team& team, DecodeShared& s, const BlockIn& block, T* data, uint32_t m,
                      uint32_t first_byte, const KeyView& key, uint64_t* digest) {
  return DecodeBlock<T>(team, s, block, m, InPlace<T>{data, first_byte, key}, digest);
}

}  // namespace deltawire::kernels::gpu
