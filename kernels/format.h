// The constants of docs/delta_format.md, in one place for the scalar, Highway and CUDA coders. It
// includes nothing that device code cannot use. Constants for device code have 32 bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/host_device.h"

namespace deltawire::kernels {

// --- every payload ---

inline constexpr uint8_t kFormat = 3;
inline constexpr uint32_t kHeadBytes = 3;  // format codec width

/// The codecs of payloads (byte 1); `same` and `raw` chunks have no payload.
enum class Codec : uint8_t { kFast = 1, kTight = 2, kDense = 3 };
/// The forms in which chunks travel, by the codec's number; 0 is a whole chunk.
inline constexpr const char* kFormNames[] = {"raw", "fast", "tight", "dense"};
inline constexpr size_t kForms = sizeof(kFormNames) / sizeof(kFormNames[0]);
constexpr size_t FormOf(Codec codec) { return static_cast<size_t>(codec); }
constexpr const char* NameOf(Codec codec) { return kFormNames[FormOf(codec)]; }

/// The largest size of a chunk; it determines the digest key's size (digest_key.h).
inline constexpr size_t kMaxChunkBytes = size_t{8} << 20;
/// Elements per independently coded block.
inline constexpr size_t kBlockElements = 64 * 1024;
inline constexpr size_t kMaxBlocks = kMaxChunkBytes / kBlockElements;  // for elements of one byte

/// Returns true when a difference, read as a signed number, is negative.
template <typename T>
DW_HD constexpr bool IsNegative(T d) {
  return (d >> (8 * sizeof(T) - 1)) != 0;
}
/// Returns |d|, at most 2^(8w - 1).
template <typename T>
DW_HD constexpr T Magnitude(T d) {
  return IsNegative(d) ? static_cast<T>(T{0} - d) : d;
}
/// The largest magnitude, which only a negative difference can have.
template <typename T>
inline constexpr T kLargestMagnitude = static_cast<T>(T{1} << (8 * sizeof(T) - 1));

// --- packed columns: the description is a width, a minimum and a reserved bit, from the lowest ---

inline constexpr uint32_t kColumnBytes = 4;
inline constexpr uint32_t kColumnWidthBits = 5;
inline constexpr uint32_t kColumnMinBits = 26;

DW_HD constexpr uint32_t ColumnWord(uint32_t min, uint32_t width) {
  return min << kColumnWidthBits | width;
}
DW_HD constexpr uint32_t ColumnWidth(uint32_t word) {
  return word & ((1u << kColumnWidthBits) - 1);
}
DW_HD constexpr uint32_t ColumnMin(uint32_t word) {
  return word >> kColumnWidthBits & ((1u << kColumnMinBits) - 1);
}
DW_HD constexpr bool ColumnReserved(uint32_t word) {
  return word >> (kColumnWidthBits + kColumnMinBits) != 0;
}

// --- fast ---

inline constexpr uint32_t kHeaderBytes = kHeadBytes + 1 + 4;  // reserved, elements
inline constexpr uint32_t kFastColumns = 3;                   // changed, large, bytes
inline constexpr uint32_t kTableOffset = kHeaderBytes + kFastColumns * kColumnBytes;
inline constexpr uint32_t kMaxRowBytes = 8;
inline constexpr uint32_t kOrderBits = 6;    // bits of the order of the sizes' code
inline constexpr uint32_t kBitLengths = 65;  // bits(v) is 0..64
static_assert(kTableOffset == 20);

/// Returns the format's rice(c, m), for c events among m places. REQUIRES: c >= 1.
DW_HD constexpr unsigned RiceParameter(uint64_t c, uint64_t m) {
  const uint64_t wanted = 481 * (2 * m - c);
  unsigned k = 0;
  for (uint64_t have = 2000 * c; have < wanted; have *= 2) ++k;
  return k;
}

// --- tight: classes ---

/// The place of the exponent in an element's bits; the values are the format's.
enum class ClassFunction : uint8_t {
  kNone = 0,
  kBF16 = 1,
  kF16 = 2,
  kF32 = 3,
  kF8E4M3 = 4,
  kF8E5M2 = 5,
};

/// The bits in which a class function finds the exponent.
struct ExponentField {
  unsigned width = 0;  ///< bytes of the element; 0: any
  unsigned shift = 0;
  unsigned bits = 0;
};
inline constexpr ExponentField kExponentFields[] = {{},         {2, 7, 8}, {2, 10, 5},
                                                    {4, 23, 8}, {1, 3, 4}, {1, 2, 5}};

constexpr ExponentField FieldOf(ClassFunction f) {
  return f <= ClassFunction::kF8E5M2 ? kExponentFields[static_cast<unsigned>(f)] : ExponentField{};
}
constexpr unsigned ExponentOf(uint64_t bits, ClassFunction f) {
  const ExponentField field = FieldOf(f);
  return static_cast<unsigned>(bits >> field.shift & ((uint64_t{1} << field.bits) - 1));
}

inline constexpr unsigned kClasses = 16;

constexpr unsigned ClassOfExponent(unsigned exponent, unsigned base) {
  if (exponent <= base) return 0;
  return exponent - base < kClasses ? exponent - base : kClasses - 1;
}

// --- tight: history ---

/// The largest number of past deltas that `tight` may use.
inline constexpr size_t kMaxHistory = 8;
inline constexpr unsigned kHistoryRows = 5;  // no change, and four ages of the last change

/// Returns the highest row that can occur with `depth` deltas of history.
constexpr unsigned HighestRow(unsigned depth) { return depth <= 2 ? depth : depth <= 4 ? 3 : 4; }
/// Returns the row of an element that last changed in delta `age` (1 is the newest).
constexpr unsigned RowOfAge(unsigned age) { return HighestRow(age); }

// --- tight: payload and parameters ---

inline constexpr uint32_t kTightHeadBytes = kHeadBytes + 1 + 1 + 1;  // function, base, depth
inline constexpr uint32_t kContextBytes = 4;
inline constexpr unsigned kMaxLaneBits = 2;
inline constexpr unsigned kMaxLanes = 1u << kMaxLaneBits;
/// An encoder uses one more lane for every so many changes.
inline constexpr uint64_t kChangesPerLane = 512;
/// Without history, a chunk of more than kCountAllElements elements is sampled: of every
/// kCountedEach runs of kCountedRun elements one is counted. With more than kCountAllChanges
/// changes, one change in kCountedChange is counted. Counts that need history are complete.
inline constexpr size_t kCountAllElements = kBlockElements;
inline constexpr size_t kCountedRun = 512;
inline constexpr uint32_t kCountedEach = 8;
inline constexpr uint32_t kCountAllChanges = 4096;
inline constexpr uint32_t kCountedChange = 4;
inline constexpr unsigned kRateCodes = 88;  // 1..88
inline constexpr unsigned kRateCodeBits = 7;
inline constexpr unsigned kLevels = 16;
inline constexpr unsigned kLevelBits = 4;
inline constexpr unsigned kLevelCountBits = 5;
inline constexpr unsigned kQ1 = 16, kQ2 = 15;     // largest numbers of levels
inline constexpr uint32_t kBeyondClasses = 4096;  // probability of "longer" for x > 15

/// The format's P[l]: the probability of level l, out of 2^16.
inline constexpr uint16_t kLevelProbability[kLevels] = {32,    512,   1966,  4588,  8520,  13763,
                                                        20316, 27525, 35389, 43254, 49807, 55706,
                                                        60293, 63570, 64881, 65405};
/// The format's H[l]: the weight of level l as a rate.
inline constexpr uint32_t kLevelWeight[kLevels] = {
    739,     11865,   46076,   109795,  210681,  356608,  561331,  824045,
    1174692, 1632013, 2158872, 2869978, 3820826, 5304696, 6967419, 9402137};
/// The format's t[l]: the largest probability, out of 2^16, for which an encoder chooses level l.
inline constexpr uint16_t kLevelLimit[kLevels - 1] = {173,   1083,  3103,  6374,  10975,
                                                      16901, 23843, 31444, 39388, 46643,
                                                      52932, 58208, 62181, 64341, 65210};
constexpr uint32_t CodeWeight(unsigned code) { return (4 + (code - 1) % 4) << (code - 1) / 4; }

// --- tight: coder ---

inline constexpr unsigned kOctaveBits = 20;  // weights are in units of 2^-20 octaves
inline constexpr uint64_t kSkipAt = uint64_t{8} << kOctaveBits;
inline constexpr unsigned kEventBits = 31;  // intervals of events
inline constexpr uint64_t kCertain = uint64_t{1} << kEventBits;
inline constexpr unsigned kDecisionBits = 16;                          // probabilities of decisions
inline constexpr uint32_t kEven = uint32_t{1} << (kDecisionBits - 1);  // that of a sign
inline constexpr unsigned kMaxRawBits = 16;

// --- dense ---

inline constexpr uint32_t kDenseHeadBytes = kHeadBytes + 1;  // reserved

// --- digest ---

inline constexpr uint32_t kDigestBlockBytes = 4 * 1024;
inline constexpr uint32_t kDigestWords = kDigestBlockBytes / 4;  // words of a block, and of the key
inline constexpr uint32_t kDigestBlocks = kMaxChunkBytes / kDigestBlockBytes;  // multipliers
static_assert(kDigestBlocks == 2048);

}  // namespace deltawire::kernels
