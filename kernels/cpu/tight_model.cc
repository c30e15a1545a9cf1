#include "kernels/cpu/tight_model.h"

#include <algorithm>

#include "kernels/cpu/survival.h"

namespace deltawire::kernels {
namespace {

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
         uint64_t{share.yes} << kDecisionBits > uint64_t{share.of} * kLevelLimit[level]) {
    ++level;
  }
  return static_cast<uint8_t>(level);
}

template <size_t N>
void WriteLevels(const uint8_t (&levels)[N], BitWriter& bits) {
  unsigned count = N;
  while (count > 0 && levels[count - 1] == 0) --count;
  bits.Put(count, kLevelCountBits);
  for (unsigned i = 0; i < count; ++i) bits.Put(levels[i], kLevelBits);
}

template <size_t N>
bool ReadLevels(BitReader& bits, uint8_t (&levels)[N]) {
  const auto count = static_cast<unsigned>(bits.Get(kLevelCountBits));
  if (count > N) return false;
  for (unsigned i = 0; i < count; ++i) levels[i] = static_cast<uint8_t>(bits.Get(kLevelBits));
  return count == 0 || levels[count - 1] != 0;
}

}  // namespace

void TightParameters::Write(BitWriter& bits) const {
  for (unsigned row = 0; row <= rows; ++row) {
    bits.Put(mask[row], kClasses);
    for (unsigned c = 0; c < kClasses; ++c) {
      if ((mask[row] >> c & 1) == 0) continue;
      bits.Put(rate[row][c], row == 0 ? kRateCodeBits : kLevelBits);
      if (row > 0) bits.Put(same[row][c], kLevelBits);
    }
  }
  WriteLevels(q1, bits);
  WriteLevels(q2, bits);
  bits.Put(m, kLevelBits);
}

bool TightParameters::Read(BitReader& bits) {
  for (unsigned row = 0; row <= rows; ++row) {
    mask[row] = static_cast<uint16_t>(bits.Get(kClasses));
    for (unsigned c = 0; c < kClasses; ++c) {
      if ((mask[row] >> c & 1) == 0) continue;
      rate[row][c] = static_cast<uint8_t>(bits.Get(row == 0 ? kRateCodeBits : kLevelBits));
      if (row > 0) same[row][c] = static_cast<uint8_t>(bits.Get(kLevelBits));
      if (row == 0 && (rate[row][c] < 1 || rate[row][c] > kRateCodes)) return false;
    }
  }
  if (!ReadLevels(bits, q1) || !ReadLevels(bits, q2)) return false;
  m = static_cast<uint8_t>(bits.Get(kLevelBits));
  return bits.ok();
}

uint32_t TightParameters::Weight(unsigned row, unsigned cls) const {
  if ((mask[row] >> cls & 1) == 0) return 0;
  return row == 0 ? CodeWeight(rate[row][cls]) : kLevelWeight[rate[row][cls]];
}

void TightParameters::FillModel(unsigned bits, LaneModel* model) const {
  model->bits = bits;
  model->mask = LowMask(bits);
  model->history = rows > 0;
  model->second = kLevelProbability[m];
  for (unsigned row = 0; row <= rows; ++row) {
    for (unsigned c = 0; c < kClasses; ++c) {
      model->weights[row << 4 | c] = Weight(row, c);
      model->same[row << 4 | c] = kLevelProbability[same[row][c]];
    }
  }
  for (unsigned c = 0; c < kClasses; ++c) {
    model->longer[c][1] = kLevelProbability[q1[c]];
    for (unsigned j = 2; j < bits; ++j) {
      const unsigned x = c + j - 1;
      model->longer[c][j] = x > kQ2 ? kBeyondClasses : kLevelProbability[q2[x - 1]];
    }
  }
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

unsigned ChooseLaneBits(uint64_t changed) {
  unsigned bits = 0;
  while (bits < kMaxLaneBits && changed >= kChangesPerLane << (bits + 1)) ++bits;
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
