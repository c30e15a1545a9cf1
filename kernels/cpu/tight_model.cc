#include "kernels/cpu/tight_model.h"

#include <algorithm>

#include "kernels/cpu/survival.h"

namespace deltawire::kernels {
namespace {

constexpr unsigned kRateCodes = 88;
constexpr std::array<uint32_t, kLevels> kLevelWeight = {
    739,     11865,   46076,   109795,  210681,  356608,  561331,  824045,
    1174692, 1632013, 2158872, 2869978, 3820826, 5304696, 6967419, 9402137};
constexpr std::array<uint16_t, kLevels - 1> kLevelLimit = {173,   1083,  3103,  6374,  10975,
                                                           16901, 23843, 31444, 39388, 46643,
                                                           52932, 58208, 62181, 64341, 65210};

constexpr uint32_t CodeWeight(unsigned code) { return (4 + (code - 1) % 4) << (code - 1) / 4; }

uint8_t ChooseRateCode(TightCounts::Share share) {
  for (unsigned code = 1; code < kRateCodes; ++code) {
    const uint64_t middle = (uint64_t{CodeWeight(code)} + CodeWeight(code + 1)) / 2;
    if ((kCertain - Survival(middle)) * share.of >= kCertain * share.yes) {
      return static_cast<uint8_t>(code);
    }
  }
  return kRateCodes;
}

uint8_t ChooseLevel(TightCounts::Share share) {
  unsigned level = 0;
  while (level < kLevels - 1 &&
         uint64_t{share.yes} << 16 > uint64_t{share.of} * kLevelLimit[level]) {
    ++level;
  }
  return static_cast<uint8_t>(level);
}

template <size_t N>
void WriteLevels(const uint8_t (&levels)[N], BitWriter& bits) {
  unsigned count = N;
  while (count > 0 && levels[count - 1] == 0) --count;
  bits.Put(count, 5);
  for (unsigned i = 0; i < count; ++i) bits.Put(levels[i], 4);
}

template <size_t N>
bool ReadLevels(BitReader& bits, uint8_t (&levels)[N]) {
  const auto count = static_cast<unsigned>(bits.Get(5));
  if (count > N) return false;
  for (unsigned i = 0; i < count; ++i) levels[i] = static_cast<uint8_t>(bits.Get(4));
  return count == 0 || levels[count - 1] != 0;
}

}  // namespace

const std::array<uint16_t, kLevels> kLevelProbability = {32,    512,   1966,  4588,  8520,  13763,
                                                         20316, 27525, 35389, 43254, 49807, 55706,
                                                         60293, 63570, 64881, 65405};

void TightParameters::Write(BitWriter& bits) const {
  for (unsigned row = 0; row <= rows; ++row) {
    bits.Put(mask[row], 16);
    for (unsigned c = 0; c < kClasses; ++c) {
      if ((mask[row] >> c & 1) == 0) continue;
      bits.Put(rate[row][c], row == 0 ? 7 : 4);
      if (row > 0) bits.Put(same[row][c], 4);
    }
  }
  WriteLevels(q1, bits);
  WriteLevels(q2, bits);
  bits.Put(m, 4);
}

bool TightParameters::Read(BitReader& bits) {
  for (unsigned row = 0; row <= rows; ++row) {
    mask[row] = static_cast<uint16_t>(bits.Get(16));
    for (unsigned c = 0; c < kClasses; ++c) {
      if ((mask[row] >> c & 1) == 0) continue;
      rate[row][c] = static_cast<uint8_t>(bits.Get(row == 0 ? 7 : 4));
      if (row > 0) same[row][c] = static_cast<uint8_t>(bits.Get(4));
      if (row == 0 && (rate[row][c] < 1 || rate[row][c] > kRateCodes)) return false;
    }
  }
  if (!ReadLevels(bits, q1) || !ReadLevels(bits, q2)) return false;
  m = static_cast<uint8_t>(bits.Get(4));
  return bits.ok();
}

uint32_t TightParameters::Weight(unsigned row, unsigned cls) const {
  if ((mask[row] >> cls & 1) == 0) return 0;
  return row == 0 ? CodeWeight(rate[row][cls]) : kLevelWeight[rate[row][cls]];
}

unsigned ChooseBase(const uint32_t (&exponents)[256], uint32_t changed) {
  const uint32_t wanted = std::max<uint32_t>(1, changed / 256);
  uint32_t above = 0;
  for (unsigned e = 256; e-- > 0;) {
    above += exponents[e];
    if (above >= wanted) return e >= kClasses - 2 ? e - (kClasses - 2) : 0;
  }
  return 0;
}

unsigned ChooseGroupBits(uint64_t changed, uint64_t blocks) {
  unsigned bits = 0;
  while (bits < kMaxGroupBits && changed << bits < 2048 * blocks) ++bits;
  return bits;
}

void ChooseParameters(const TightCounts& counts, TightParameters* parameters) {
  for (unsigned row = 0; row <= parameters->rows; ++row) {
    for (unsigned c = 0; c < kClasses; ++c) {
      const TightCounts::Share share = counts.rate[row][c];
      if (share.yes == 0) continue;
      parameters->mask[row] |= static_cast<uint16_t>(1u << c);
      parameters->rate[row][c] = row == 0 ? ChooseRateCode(share) : ChooseLevel(share);
      if (row > 0) parameters->same[row][c] = ChooseLevel(counts.same[row][c]);
    }
  }
  for (unsigned i = 0; i < kQ1; ++i) parameters->q1[i] = ChooseLevel(counts.q1[i]);
  for (unsigned i = 0; i < kQ2; ++i) parameters->q2[i] = ChooseLevel(counts.q2[i]);
  parameters->m = ChooseLevel(counts.m);
}

}  // namespace deltawire::kernels
