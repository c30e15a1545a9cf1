#include "kernels/cpu/highway/place_nest.h"

#include <algorithm>
#include <cstdlib>

namespace deltawire::kernels {
namespace {

/// With fewer elements than this along either side a plain walk is as fast.
constexpr uint64_t kLeastSide = 8;
/// If columns lie further apart than this many destination elements, too few share a cache line for
/// a transposition to pay.
constexpr int64_t kWidestGap = 8;

/// Returns true when a step of `outer` continues where `inner` ends, so that both are one axis.
bool Continues(const Axis& outer, const Axis& inner) {
  const auto count = static_cast<int64_t>(inner.count);
  return outer.src == inner.src * count && outer.dst == inner.dst * count;
}

/// Merges one axis into the run or into another axis; returns false when none can be merged.
bool MergeOne(Nest& nest, size_t src_width, size_t dst_width) {
  const auto run = static_cast<int64_t>(nest.run);
  for (size_t i = 0; i < nest.dims; ++i) {
    const Axis& axis = nest.axes[i];
    if (axis.src == run * static_cast<int64_t>(src_width) &&
        axis.dst == run * static_cast<int64_t>(dst_width)) {
      nest.run *= axis.count;
      nest.Drop(i);
      return true;
    }
    for (size_t k = 0; k < nest.dims; ++k) {
      if (k == i || !Continues(axis, nest.axes[k])) continue;
      nest.axes[k].count *= axis.count;
      nest.Drop(i);
      return true;
    }
  }
  return false;
}

/// Removes the axis whose stride on one side is `stride` from `nest`; returns false when none has
/// it.
bool Take(Nest& nest, int64_t Axis::*side, int64_t stride, Axis* taken) {
  for (size_t i = nest.dims; i-- > 0;) {
    if (nest.axes[i].*side != stride) continue;
    *taken = nest.axes[i];
    nest.Drop(i);
    return true;
  }
  return false;
}

}  // namespace

void Nest::Drop(size_t axis) {
  for (size_t i = axis + 1; i < dims; ++i) axes[i - 1] = axes[i];
  --dims;
}

void Nest::Insert(const Axis& axis) {
  size_t at = dims++;
  for (; at > 0 && axes[at - 1].dst < axis.dst; --at) axes[at] = axes[at - 1];
  axes[at] = axis;
}

Nest Normalized(const StridedCopy& copy, size_t src_width, size_t dst_width) {
  Nest nest;
  nest.src = copy.src_offset;
  nest.dst = copy.dst_offset;
  nest.run = copy.run_bytes / dst_width;
  for (size_t i = 0; i < copy.dims; ++i) {
    Axis axis{copy.counts[i], copy.src_strides[i], copy.dst_strides[i]};
    if (axis.count == 0) nest.run = 0;
    if (axis.count <= 1) continue;
    if (axis.dst < 0) {  // walk it in reverse, which copies the same runs
      const auto steps = static_cast<int64_t>(axis.count - 1);
      nest.src += steps * axis.src;
      nest.dst += steps * axis.dst;
      axis.src = -axis.src;
      axis.dst = -axis.dst;
    }
    nest.Insert(axis);
  }
  if (nest.run == 0) nest.dims = 0;
  while (MergeOne(nest, src_width, dst_width)) {
  }
  return nest;
}

size_t ClosestInSource(const Nest& nest) {
  const Axis* closest = std::min_element(
      nest.axes, nest.axes + nest.dims,
      [](const Axis& a, const Axis& b) { return std::abs(a.src) < std::abs(b.src); });
  return static_cast<size_t>(closest - nest.axes);
}

bool FindTransposition(const Nest& nest, size_t src_width, size_t dst_width, Transposition* found) {
  if (nest.run != 1 || nest.dims < 2) return false;
  Transposition t;
  t.outer = nest;
  const auto width = static_cast<int64_t>(dst_width);
  t.column_step = t.outer.axes[t.outer.dims - 1].dst;
  if (t.column_step > kWidestGap * width) return false;
  const auto from_width = static_cast<int64_t>(src_width);
  if (!Take(t.outer, &Axis::src, from_width, &t.rows.inner) ||
      !Take(t.outer, &Axis::dst, t.column_step, &t.columns.inner)) {
    return false;
  }
  const auto rows = static_cast<int64_t>(t.rows.inner.count);
  const auto columns = static_cast<int64_t>(t.columns.inner.count);
  // An axis may continue either rows or columns; the shorter side gets it first.
  if (rows < columns) Take(t.outer, &Axis::src, from_width * rows, &t.rows.outer);
  Take(t.outer, &Axis::dst, t.column_step * columns, &t.columns.outer);
  if (t.rows.outer.count == 1) Take(t.outer, &Axis::src, from_width * rows, &t.rows.outer);
  if (t.rows.count() < kLeastSide || t.columns.count() < kLeastSide) return false;
  *found = t;
  return true;
}

}  // namespace deltawire::kernels
