// Chunks with a history, for golden files, cross checks and fuzzing of the tight codec: old bytes
// that look like weights, the deltas that led to them, and one more delta. A seed determines
// everything. Owner: a case owns its bytes. Threads: one. Cost: a few copies of the chunk. Errors:
// none.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "common/base/checksum.h"
#include "kernels/kernels.h"
#include "tests/unit/kernels/kernel_data.h"

namespace deltawire::kernels::test {

/// The check value of a history (docs/delta_format.md, "History"); an empty delta: the chunk did
/// not change.
inline uint32_t ContextOf(std::span<const Bytes> deltas) {
  std::vector<uint64_t> checks;
  for (const Bytes delta : deltas) checks.push_back(delta.empty() ? 0 : Xxh3(delta));
  return static_cast<uint32_t>(Xxh3(std::as_bytes(std::span(checks))));
}

inline unsigned WidthOf(ClassFunction f) {
  switch (f) {
    case ClassFunction::kF32:
      return 4;
    case ClassFunction::kF8E4M3:
    case ClassFunction::kF8E5M2:
      return 1;
    default:
      return 2;
  }
}

struct DeltaCase {
  std::string name;
  ClassFunction function = ClassFunction::kNone;
  unsigned width = 2;
  Buffer base{0};            ///< the bytes before `past`
  Buffer old_data{0};        ///< the bytes after `past`
  Buffer new_data{0};        ///< the bytes after the delta to encode
  std::vector<Buffer> past;  ///< fast payloads, newest first; empty where nothing changed

  /// The newest `depth` deltas.
  std::vector<Bytes> Deltas(unsigned depth) const {
    return {past.begin(), past.begin() + static_cast<ptrdiff_t>(depth)};
  }
};

/// Properties of a case's deltas.
struct CaseShape {
  std::string name;
  ClassFunction function = ClassFunction::kNone;
  unsigned width = 2;
  size_t elements = 0;
  double density = 0.01;  ///< share that changes; with a class function, of the second exponent
  double any = 0.1;       ///< share of changes other than by one
  unsigned depth = 0;     ///< deltas in the past
};

namespace internal {

/// The position of a number's exponent, and the largest exponent of the weights.
struct NumberFormat {
  unsigned mantissa_bits, top_exponent;

  static NumberFormat Of(ClassFunction f) {
    switch (f) {
      case ClassFunction::kNone:
      case ClassFunction::kBF16:
        return {7, 122};
      case ClassFunction::kF16:
        return {10, 13};
      case ClassFunction::kF32:
        return {23, 122};
      case ClassFunction::kF8E4M3:
        return {3, 9};
      case ClassFunction::kF8E5M2:
        return {2, 17};
    }
    return {7, 122};
  }
};

/// A number like a weight: each exponent is half as frequent as the next higher one.
inline uint64_t Weight(const CaseShape& s, Random& random) {
  if (s.function == ClassFunction::kNone) return random.Next();
  const NumberFormat f = NumberFormat::Of(s.function);
  const auto below = static_cast<unsigned>(std::countr_zero(random.Next() | uint64_t{1} << 11));
  const uint64_t exponent = f.top_exponent - std::min(f.top_exponent, below);
  return random.Below(2) << (8 * s.width - 1) | exponent << f.mantissa_bits |
         random.Below(uint64_t{1} << f.mantissa_bits);
}

/// One step of training: of each exponent, twice as large a share changes as of the next higher
/// one. Elements that changed in the last step change most often, and mostly back.
inline void Step(const CaseShape& s, MutableBytes data, std::vector<int8_t>& last, Random& random) {
  const NumberFormat f = NumberFormat::Of(s.function);
  for (size_t i = 0; i < data.size() / s.width; ++i) {
    const uint64_t v = LoadAt(data, i, s.width);
    double rate = s.density;
    if (s.function != ClassFunction::kNone) {
      const uint64_t size = v & ((uint64_t{1} << (8 * s.width - 1)) - 1);
      const int exponent = static_cast<int>(size >> f.mantissa_bits);
      rate = std::ldexp(s.density, static_cast<int>(f.top_exponent) - exponent - 1);
    }
    const int8_t before = last[i];
    last[i] = 0;
    if (!random.Chance(std::min(0.9, std::max(rate, before != 0 ? 0.3 : 0.0)))) continue;
    const bool up = before != 0 && random.Below(4) != 0 ? before < 0 : random.Below(2) != 0;
    uint64_t d = 1;
    if (random.Chance(s.any)) d = 2 + (random.Next() >> (64 - 8 * s.width) >> random.Below(60));
    StoreAt(data, i, s.width, up ? v + d : v - d);
    last[i] = up ? 1 : -1;
  }
}

}  // namespace internal

/// `pattern` elements repeat over the chunk, so that a file of `pattern` elements describes `base`.
inline DeltaCase MakeDeltaCase(const CaseShape& s, size_t pattern, uint64_t seed) {
  Random random(seed);
  const DigestKey key(seed);
  DeltaCase c{.name = s.name, .function = s.function, .width = s.width};
  c.base = Buffer(s.elements * s.width);
  for (size_t i = 0; i < s.elements; ++i) {
    const uint64_t v =
        i < pattern ? internal::Weight(s, random) : LoadAt(c.base, i - pattern, s.width);
    StoreAt(c.base, i, s.width, v);
  }
  std::vector<int8_t> last(s.elements);
  c.old_data = Buffer(c.base, 0);
  for (unsigned k = 0; k < s.depth; ++k) {
    const Buffer before(c.old_data, 0);
    // One delta of a long past leaves the chunk unchanged.
    if (k != 3) internal::Step(s, c.old_data, last, random);
    c.past.insert(c.past.begin(), Encode(Scalar(), key, before, c.old_data, s.width));
  }
  c.new_data = Buffer(c.old_data, 0);
  internal::Step(s, c.new_data, last, random);
  return c;
}

/// The tight payload of a case with the newest `depth` deltas; empty if it would not be smaller.
inline Buffer EncodeTight(const Backend& backend, const DeltaCase& c, Bytes fast, unsigned depth) {
  const std::vector<Bytes> deltas = c.Deltas(depth);
  const History history{deltas, ContextOf(deltas)};
  Buffer scratch(kTightScratchBytes), out(fast.size());
  size_t bytes = 0;
  const DecodeStatus status =
      backend.tight_encode(c.old_data, fast, c.width, c.function, history, scratch, out, &bytes);
  if (status != DecodeStatus::kOk) bytes = 0;
  return Buffer(Bytes(out).first(bytes), 0);
}

}  // namespace deltawire::kernels::test
