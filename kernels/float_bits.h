// The conversions of kernels.h between bf16, fp16 and fp32, one element at a time, on their bits;
// for device and CPU. Integer arithmetic but for the addition. The rules are at struct Convert.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/host_device.h"

namespace deltawire::kernels {

inline constexpr uint32_t kF32Infinity = 0x7f800000;
inline constexpr uint32_t kF32Quiet = 0x00400000;
inline constexpr uint32_t kF32Sign = 0x80000000;

DW_HD bool IsNaN32(uint32_t f) { return (f & ~kF32Sign) > kF32Infinity; }

DW_HD uint32_t F32FromBF16(uint16_t v) { return uint32_t{v} << 16; }

DW_HD uint16_t BF16FromF32(uint32_t f) {
  if (IsNaN32(f)) return static_cast<uint16_t>((f | kF32Quiet) >> 16);
  // Adds just under half of the last place kept, and one more if that place is odd: rounds to
  // nearest, ties to even.
  return static_cast<uint16_t>((f + 0x7fff + (f >> 16 & 1)) >> 16);
}

DW_HD uint32_t F32FromF16(uint16_t v) {
  const uint32_t sign = uint32_t{v & 0x8000u} << 16;
  uint32_t rest = v & 0x7fffu;
  if (rest > 0x7c00) return sign | kF32Infinity | kF32Quiet | rest << 13;
  if (rest == 0x7c00) return sign | kF32Infinity;
  constexpr uint32_t kRebias = 127 - 15;
  if (rest >= 0x0400) return sign | ((rest << 13) + (kRebias << 23));
  if (rest == 0) return sign;
  uint32_t exponent = kRebias + 1;  // subnormal: shift until its leading bit is the hidden bit
  for (; rest < 0x0400; rest <<= 1) --exponent;
  return sign | exponent << 23 | (rest & 0x03ff) << 13;
}

DW_HD uint16_t F16FromF32(uint32_t f) {
  const uint32_t sign = f >> 16 & 0x8000;
  const uint32_t rest = f & ~kF32Sign;
  if (rest > kF32Infinity) return static_cast<uint16_t>(sign | 0x7e00 | (rest >> 13 & 0x01ff));
  if (rest >= 0x47800000) return static_cast<uint16_t>(sign | 0x7c00);  // 2^16 and more
  uint32_t kept, cut, half;
  if (rest >= 0x38800000) {  // 2^-14: the smallest normal number
    kept = (rest >> 13) - ((127 - 15) << 10);
    cut = rest & 0x1fff;
    half = 0x1000;
  } else {
    const uint32_t exponent = rest >> 23;
    if (exponent < 102) return static_cast<uint16_t>(sign);  // below half of the smallest number
    const uint32_t shift = 126 - exponent;                   // 14 .. 24
    const uint32_t significand = (rest & 0x007fffff) | 0x00800000;
    kept = significand >> shift;
    half = uint32_t{1} << (shift - 1);
    cut = significand & (2 * half - 1);
  }
  // A carry enters the exponent, and turns the largest number into infinity, as it should.
  if (cut > half || (cut == half && (kept & 1) != 0)) ++kept;
  return static_cast<uint16_t>(sign | kept);
}

/// Returns f + summand in fp32; a NaN only becomes quiet. REQUIRES: summand is not a NaN.
DW_HD uint32_t F32Plus(uint32_t f, float summand) {
  if (IsNaN32(f)) return f | kF32Quiet;
  float number;
  memcpy(&number, &f, 4);
  number += summand;
  memcpy(&f, &number, 4);
  return f;
}

}  // namespace deltawire::kernels
