// The survival function G of the tight codec (docs/delta_format.md, "Survival function") and its
// inverse, in integers, so that every machine computes the same bits. The tables are made at
// compile time. Costs a few ns.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/format.h"

namespace deltawire::kernels {

namespace survival_internal {
constexpr std::array<uint32_t, 1025> MakeTable() {
  std::array<uint32_t, 1025> table{};
  unsigned __int128 t = uint64_t{1} << 62;
  for (size_t i = 0; i < 1024; ++i) {
    table[i] = static_cast<uint32_t>(static_cast<uint64_t>(t) >> 31);
    t = t * 0xffd3a751c0f7e10b >> 64;
  }
  table[1024] = uint32_t{1} << 30;
  return table;
}
inline constexpr std::array<uint32_t, 1025> kTable = MakeTable();
static_assert(kTable[1] == 2146030504 && kTable[512] == 1518500249 && kTable[1023] == 1074468887);

/// An entry of the table, and its difference to the next one: one load instead of two.
constexpr std::array<uint64_t, 1024> MakeFalls() {
  std::array<uint64_t, 1024> falls{};
  for (size_t i = 0; i < 1024; ++i) {
    falls[i] = uint64_t{kTable[i] - kTable[i + 1]} << 32 | kTable[i];
  }
  return falls;
}
inline constexpr std::array<uint64_t, 1024> kFalls = MakeFalls();

/// Start values of the search in LargestSum, for every z in (2^30, 2^31] whose eleven bits below
/// the highest are h. hints[h] is the index of the last table entry that is >= z, or of the one
/// before it, since neighboring entries are more than 2^19 apart.
constexpr std::array<uint16_t, 2049> MakeHints() {
  std::array<uint16_t, 2049> hints{};
  size_t i = 1024;
  for (size_t h = 0; h <= 2048; ++h) {
    // Every z of slot h is below the next slot's first z, `most`, so the last entry >= `most` is
    // not too late for any of them.
    const uint64_t most = (uint64_t{1} << 30) + ((h + 1) << 19);
    while (i > 0 && kTable[i] < most) --i;
    hints[h] = static_cast<uint16_t>(i);
  }
  return hints;
}
inline constexpr std::array<uint16_t, 2049> kHints = MakeHints();
}  // namespace survival_internal

/// Returns 2^31 times the probability of no change over a sum of weights; 0 above 31 octaves.
inline uint64_t Survival(uint64_t sum) {
  const uint64_t octave = sum >> kOctaveBits;
  if (octave > 31) return 0;
  const uint64_t i = sum >> 10 & 1023, r = sum & 1023;
  const uint64_t entry = survival_internal::kFalls[i];
  return (static_cast<uint32_t>(entry) - ((entry >> 32) * r >> 10)) >> octave;
}

/// Returns the largest sum with Survival(sum) >= survivors. REQUIRES: 1 <= survivors <= 2^31.
inline uint64_t LargestSum(uint64_t survivors) {
  // The last octave whose first value, 2^31 >> octave, is still >= survivors.
  const unsigned octave = 31 - static_cast<unsigned>(std::bit_width(survivors - 1));
  const uint64_t z = survivors << octave;  // in (2^30, 2^31]
  uint64_t i = survival_internal::kHints[(z - (uint64_t{1} << 30)) >> 19];
  i += i < 1023 && survival_internal::kTable[i + 1] >= z;
  const uint64_t entry = survival_internal::kFalls[i];
  const uint64_t a = static_cast<uint32_t>(entry);
  // The largest r with floor(fall r / 2^10) <= a - z.
  const uint32_t r =
      static_cast<uint32_t>(((a - z + 1) << 10) - 1) / static_cast<uint32_t>(entry >> 32);
  return uint64_t{octave} << kOctaveBits | i << 10 | (r < 1023 ? r : 1023);
}

}  // namespace deltawire::kernels
