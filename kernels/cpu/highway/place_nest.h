// A strided copy in the kernels' normal form: dimensions merged and sorted, strides of the
// destination positive. It also recognizes transpositions. Costs about 100 ns per copy.
#pragma once

#include <algorithm>

#include "kernels/kernels.h"

namespace deltawire::kernels {

/// One dimension; strides in bytes.
struct Axis {
  uint64_t count = 1;
  int64_t src = 0;
  int64_t dst = 0;
};

/// A copy of runs of `run` elements. Its axes are sorted by falling destination stride; none has
/// count 1, and no two could be merged into one.
struct Nest {
  int64_t src = 0, dst = 0;  ///< offsets of the first run
  uint64_t run = 0;          ///< elements; 0: nothing to copy
  size_t dims = 0;
  Axis axes[StridedCopy::kMaxDims];

  /// Inserts the axis at its place by destination stride. REQUIRES: dims < kMaxDims.
  void Insert(const Axis& axis);
  void Drop(size_t axis);
};

/// Returns the normal form of `copy`, whose elements have `src_width` bytes in the source and
/// `dst_width` in the destination; `copy.run_bytes` counts destination bytes.
Nest Normalized(const StridedCopy& copy, size_t src_width, size_t dst_width);

/// Up to two axes walked with one index i: step i % inner.count of the inner axis and step
/// i / inner.count of the outer one.
struct JoinedAxis {
  Axis inner, outer;
  uint64_t count() const { return inner.count * outer.count; }
};

/// Walks a JoinedAxis step by step, since divisions would take longer than the copying.
class Walker {
 public:
  Walker(const JoinedAxis& axis, uint64_t start)
      : axis_(axis),
        at_(start % axis.inner.count),
        src_(Offset(start, &Axis::src)),
        dst_(Offset(start, &Axis::dst)) {}
  int64_t src() const { return src_; }
  int64_t dst() const { return dst_; }
  void Next() {
    src_ += axis_.inner.src, dst_ += axis_.inner.dst;
    if (++at_ < axis_.inner.count) return;
    at_ = 0;
    const auto count = static_cast<int64_t>(axis_.inner.count);
    src_ += axis_.outer.src - count * axis_.inner.src;
    dst_ += axis_.outer.dst - count * axis_.inner.dst;
  }

 private:
  int64_t Offset(uint64_t start, int64_t Axis::*side) const {
    return static_cast<int64_t>(at_) * axis_.inner.*side +
           static_cast<int64_t>(start / axis_.inner.count) * axis_.outer.*side;
  }
  const JoinedAxis& axis_;
  uint64_t at_;
  int64_t src_, dst_;
};

/// A nest of single elements. Elements along `rows` are adjacent in the source; elements along
/// `columns` are adjacent, or a few elements apart, in the destination.
struct Transposition {
  JoinedAxis rows, columns;
  int64_t column_step = 0;  ///< bytes of the destination from one column to the next
  Nest outer;               ///< the remaining axes
};

/// Returns false when `nest` is not a transposition, or is too small to be treated as one.
bool FindTransposition(const Nest& nest, size_t src_width, size_t dst_width, Transposition* found);

/// Returns the axis with the smallest step in the source. REQUIRES: nest.dims > 0.
size_t ClosestInSource(const Nest& nest);

/// Calls run(src offset, dst offset) for every step of the nest's axes.
template <typename Run>
void ForEachRun(const Nest& nest, const Run& run) {
  const Axis inner = nest.dims == 0 ? Axis{} : nest.axes[nest.dims - 1];
  const size_t outer = nest.dims == 0 ? 0 : nest.dims - 1;
  uint64_t at[StridedCopy::kMaxDims] = {};
  // Adds to offsets, not pointers: past the last run a pointer could lie outside of its span.
  int64_t src = nest.src, dst = nest.dst;
  for (;;) {
    int64_t from = src, to = dst;
    for (uint64_t i = 0; i < inner.count; ++i, from += inner.src, to += inner.dst) run(from, to);
    size_t i = outer;
    for (; i > 0; --i) {
      const Axis& axis = nest.axes[i - 1];
      src += axis.src, dst += axis.dst;
      if (++at[i - 1] < axis.count) break;
      at[i - 1] = 0;
      src -= static_cast<int64_t>(axis.count) * axis.src;
      dst -= static_cast<int64_t>(axis.count) * axis.dst;
    }
    if (i == 0) return;
  }
}

/// Calls run(src offset, dst offset) in an order that suits runs of `run_bytes`. Short runs are
/// visited in squares over the two axes along which they lie closest in source and destination, so
/// that a cache line that one run has touched is still in the cache for the next.
template <typename Run>
void ForEachRunNearby(const Nest& nest, uint64_t run_bytes, const Run& run) {
  constexpr uint64_t kShort = 64, kSide = 32;
  if (run_bytes >= kShort || nest.dims < 2) return ForEachRun(nest, run);
  const size_t close = ClosestInSource(nest);
  if (close == nest.dims - 1) return ForEachRun(nest, run);
  Nest outer = nest, square;
  square.dims = 2;
  const Axis columns = nest.axes[nest.dims - 1], rows = nest.axes[close];
  square.axes[0] = rows, square.axes[1] = columns;
  outer.Drop(nest.dims - 1);
  outer.Drop(close);
  ForEachRun(outer, [&](int64_t src, int64_t dst) {
    for (uint64_t c = 0; c < columns.count; c += kSide) {
      square.axes[1].count = std::min(kSide, columns.count - c);
      for (uint64_t r = 0; r < rows.count; r += kSide) {
        square.axes[0].count = std::min(kSide, rows.count - r);
        const auto row = static_cast<int64_t>(r), column = static_cast<int64_t>(c);
        square.src = src + row * rows.src + column * columns.src;
        square.dst = dst + row * rows.dst + column * columns.dst;
        ForEachRun(square, run);
      }
    }
  });
}

}  // namespace deltawire::kernels
