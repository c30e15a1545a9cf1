// The tight codec behind the backends' tight_encode and tight_decode, whose errors it has. A
// backend passes its own functions for the dense work on a block. It works in the caller's scratch,
// without allocation. Costs one to two passes over the old bytes, and 10 to 20 ns per change.
#pragma once

#include "kernels/cpu/tight_lanes.h"
#include "kernels/payload.h"

namespace deltawire::kernels {

/// The weights of classes in row 0, and their bytes separately for look-ups.
struct ClassWeights {
  uint32_t weights[kClasses] = {};
  alignas(16) uint8_t bytes[3][kClasses] = {};
};

/// The parts of the codec that touch every element, or a fast payload: one table per backend.
/// `width` is 1, 2, 4 or 8 everywhere; differences are zero-extended.
struct BlockOps {
  /// classes[i] = class of element i.
  void (*classes)(const uint8_t* data, size_t elements, ClassFunction function, unsigned base,
                  uint8_t* classes);
  /// sums[i] = sum of the weights of kSumStep classes from kSumStep i on, for complete groups of
  /// kSumStep elements. With `total`, sums[i] covers all classes up to the end of that group, plus
  /// *total, which becomes the last sum. REQUIRES: weights < 2^24.
  void (*sums)(const uint8_t* classes, size_t elements, const ClassWeights& weights, uint64_t* sums,
               uint64_t* total);
  /// counts[c] += number of elements of class c.
  void (*count)(const uint8_t* classes, size_t elements, uint32_t (&counts)[kClasses]);
  /// Reads a block's changes into `at` and `d`, which have room for row.changed each; returns false
  /// when the stream is malformed.
  bool (*unpack)(const BlockRow& row, const uint8_t* stream, const uint8_t* end, size_t elements,
                 unsigned width, uint16_t* at, uint64_t* d);
  /// Reads only the places of a block's changes, into `at`, and their signs into the bits of
  /// `down`, which has room for row.changed bits in whole words. REQUIRES: a valid stream.
  bool (*places)(const BlockRow& row, const uint8_t* stream, const uint8_t* end, size_t elements,
                 unsigned width, uint16_t* at, uint64_t* down);
  /// Writes a block with these changes; `dense` is scratch of one block of elements.
  BlockRow (*pack)(const uint16_t* at, const uint64_t* d, size_t changed, size_t elements,
                   unsigned width, uint8_t* dense, uint8_t* out);
  /// Codes a block's changes, each in its lane.
  void (*put)(const LaneModel& model, const LaneBlock& block, LaneEncoder* lanes,
              unsigned lane_bits, const uint16_t* at, const uint64_t* d, size_t changed);
  /// Decodes a block's changes. Those of lane i are written to at and d from block.First(i) on, and
  /// their number to lanes[i].changed. Returns false when a stream is malformed.
  bool (*get)(const LaneModel& model, const LaneBlock& block, LaneDecoder* lanes,
              unsigned lane_bits, uint16_t* at, uint64_t* d);
};

DecodeStatus TightEncode(const BlockOps& ops, Bytes old_data, Bytes payload, unsigned width,
                         ClassFunction function, const History& history, MutableBytes scratch,
                         MutableBytes out, size_t* bytes);
DecodeStatus TightDecode(const BlockOps& ops, Bytes old_data, Bytes tight, unsigned width,
                         const History& history, MutableBytes scratch, MutableBytes out,
                         size_t* bytes);

/// Turns the numbers into running sums that start from *total; *total becomes the last one.
inline void AddUp(uint64_t* numbers, size_t count, uint64_t* total) {
  uint64_t sum = *total;
  for (size_t i = 0; i < count; ++i) numbers[i] = sum += numbers[i];
  *total = sum;
}

/// BlockOps::places of a raw block.
template <typename T>
void PutRawPlaces(const uint8_t* stream, size_t elements, uint16_t* at, uint64_t* down) {
  size_t count = 0;
  for (size_t i = 0; i < elements; ++i) {
    const T difference = LoadElement<T>(stream, i);
    if (difference == 0) continue;
    if (count % 64 == 0) down[count / 64] = 0;
    down[count / 64] |= uint64_t{IsNegative(difference)} << count % 64;
    at[count++] = static_cast<uint16_t>(i);
  }
}

/// Returns the element width that a class function is for; 0: any.
constexpr unsigned WidthOf(ClassFunction function) { return FieldOf(function).width; }

}  // namespace deltawire::kernels
