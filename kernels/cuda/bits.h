// The bits of format 3's fast streams (docs/delta_format.md, "fast"), for device and CPU: reads and
// writes at any bit, and the Golomb code of sizes. Reads check their bounds, and bits beyond the
// end are zero. Writes leave the check to the caller.
#pragma once

#include "kernels/cuda/portable.h"

namespace deltawire::kernels::gpu {

DW_HD uint64_t LowBits(uint64_t v, uint32_t n) {
  return n >= 64 ? v : v & ((uint64_t{1} << n) - 1);
}

/// Ors the low `n` <= 64 bits of `v` into a zeroed bit stream of words, at bit `at`. Several lanes
/// may write to one word.
DW_HD void OrBits(uint32_t* words, uint32_t at, uint64_t v, uint32_t n) {
  v = LowBits(v, n);
  uint32_t* word = words + (at >> 5);
  const uint32_t shift = at & 31;
  const auto part = static_cast<uint32_t>(v << shift);
  if (part != 0) AtomicOr(word, part);
  v >>= 32 - shift;
  for (; v != 0; v >>= 32) {
    ++word;
    if (static_cast<uint32_t>(v) != 0) AtomicOr(word, static_cast<uint32_t>(v));
  }
}

/// A bit stream that may start at any byte. REQUIRES: its memory can be read in whole 32-bit words.
class BitReader {
 public:
  DW_HD BitReader(const uint8_t* data, uint32_t bytes) : bits_(bytes * 8) {
    const uint32_t skew = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(data) & 3);
    words_ = reinterpret_cast<const uint32_t*>(data - skew);
    skew_bits_ = skew * 8;
    last_ = bytes == 0 ? 0 : (skew_bits_ + bits_ - 1) >> 5;
  }
  DW_HD uint32_t bits() const { return bits_; }

  /// Returns the 32 bits from bit `at` on; bits beyond the end are zero.
  DW_HD uint32_t Load32(uint32_t at) const {
    if (at >= bits_) return 0;
    const uint32_t word = (skew_bits_ + at) >> 5, shift = (skew_bits_ + at) & 31;
    uint64_t two = words_[word];
    if (word < last_) two |= uint64_t{words_[word + 1]} << 32;
    const uint32_t left = bits_ - at;
    return static_cast<uint32_t>(LowBits(two >> shift, Least(left, 32u)));
  }
  /// Returns the `n` <= 64 bits from bit `at` on.
  DW_HD uint64_t Load(uint32_t at, uint32_t n) const {
    uint64_t v = Load32(at);
    if (n > 32) v |= uint64_t{Load32(at + 32)} << 32;
    return LowBits(v, n);
  }

 private:
  const uint32_t* words_;
  uint32_t skew_bits_, bits_, last_;
};

DW_HD uint32_t SizeCodeBits(uint64_t v, uint32_t j) { return 2 * BitLength((v >> j) + 1) - 1 + j; }

DW_HD void OrSizeCode(uint32_t* words, uint32_t at, uint64_t v, uint32_t j) {
  const uint64_t u = (v >> j) + 1;
  const uint32_t n = BitLength(u);
  OrBits(words, at + n - 1, 1, 1);
  OrBits(words, at + n, u, n - 1);
  OrBits(words, at + 2 * n - 1, v, j);
}

struct SizeCode {
  uint64_t v = 0;
  uint32_t end = 0;  ///< first bit after the code; the stream's end if there is no code
  bool valid = false;
};

/// Returns the first bit after the size code that starts at `at`. It always advances, whatever the
/// bits.
DW_HD uint32_t SizeCodeEnd(const BitReader& in, uint32_t at, uint32_t j) {
  uint32_t zeros = 0;
  uint32_t word = in.Load32(at);
  if (word == 0) {
    zeros = 32;
    word = in.Load32(at + 32);
    if (word == 0) return in.bits();
  }
  zeros += LowestBit(word);
  return Least(at + 2 * zeros + 1 + j, in.bits());
}

DW_HD SizeCode ReadSizeCode(const BitReader& in, uint32_t at, uint32_t j) {
  SizeCode code;
  code.end = in.bits();
  uint32_t zeros = 0;
  uint32_t word = in.Load32(at);
  if (word == 0) {
    zeros = 32;
    word = in.Load32(at + 32);
    if (word == 0) return code;
  }
  zeros += LowestBit(word);
  const uint32_t low = at + 2 * zeros + 1;
  if (low + j > in.bits()) return code;
  const uint64_t u = uint64_t{1} << zeros | in.Load(at + zeros + 1, zeros);
  if (j != 0 && ((u - 1) << j) >> j != u - 1) return code;
  code.v = ((u - 1) << j) | in.Load(low, j);
  code.end = low + j;
  code.valid = true;
  return code;
}

}  // namespace deltawire::kernels::gpu
