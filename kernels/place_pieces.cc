#include "kernels/place_pieces.h"

#include <algorithm>
#include <iterator>

namespace deltawire::kernels {
namespace {

/// A cut through a dimension of single elements leaves at least this many in each piece, so that a
/// transposition's tile is not narrower than a few cache lines.
constexpr uint64_t kElementsTogether = 128;

constexpr uint64_t kRunStep = 64;  // bytes of the destination: a cache line

}  // namespace

uint64_t CopiedBytes(const StridedCopy& copy) {
  uint64_t bytes = copy.run_bytes;
  for (size_t i = 0; i < copy.dims; ++i) bytes *= copy.counts[i];
  return bytes;
}

CopyPieces::CopyPieces(const StridedCopy& copy, const Convert& convert, size_t target_bytes)
    : copy_(copy), convert_(convert), dim_(copy.dims) {
  const uint64_t bytes = CopiedBytes(copy);
  if (bytes == 0) return;
  const uint64_t wanted = bytes / std::max<uint64_t>(target_bytes, 1);
  count_ = 1;
  if (wanted <= 1) return;
  // Cuts the outermost dimension that is long enough, else the longest of dimensions and run.
  const bool elements = copy.run_bytes <= 8;
  uint64_t best = 0;
  for (size_t i = 0; i <= copy.dims && best < wanted; ++i) {
    const bool run = i == copy.dims;
    const uint64_t length = run ? copy.run_bytes : copy.counts[i];
    const uint64_t step = run                                               ? kRunStep
                          : elements && copy.counts[i] >= kElementsTogether ? kElementsTogether
                                                                            : 1;
    const uint64_t steps = (length + step - 1) / step;
    if (steps <= best) continue;
    best = steps;
    dim_ = i;
    step_ = step;
  }
  count_ = static_cast<size_t>(std::min(best, wanted));
}

StridedCopy CopyPieces::operator[](size_t i) const {
  if (count_ == 1) return copy_;
  const bool run = dim_ == copy_.dims;
  const uint64_t length = run ? copy_.run_bytes : copy_.counts[dim_];
  const uint64_t steps = (length + step_ - 1) / step_;

  const auto cut = [&](uint64_t at) {
    return std::min(length, (steps / count_ * at + std::min(at, steps % count_)) * step_);
  };
  const uint64_t first = cut(i), size = cut(i + 1) - first;
  StridedCopy piece = copy_;
  if (run) {
    piece.run_bytes = size;
    piece.dst_offset += static_cast<int64_t>(first);
    piece.src_offset += static_cast<int64_t>(first / WidthOf(convert_.to) * WidthOf(convert_.from));
  } else {
    piece.counts[dim_] = size;
    piece.src_offset += static_cast<int64_t>(first) * copy_.src_strides[dim_];
    piece.dst_offset += static_cast<int64_t>(first) * copy_.dst_strides[dim_];
  }
  return piece;
}

bool JoinCopies(const StridedCopy& a, const StridedCopy& b, StridedCopy* joined) {
  const auto same = [&](const auto& x, const auto& y) {
    return std::equal(std::begin(x), std::begin(x) + a.dims, std::begin(y));
  };
  if (a.dims != b.dims || a.dims == StridedCopy::kMaxDims || a.run_bytes != b.run_bytes ||
      !same(a.counts, b.counts) || !same(a.src_strides, b.src_strides) ||
      !same(a.dst_strides, b.dst_strides)) {
    return false;
  }
  StridedCopy both = a;
  // The new dimension is the innermost, so that cutting the outermost does not separate them again.
  both.counts[both.dims] = 2;
  both.src_strides[both.dims] = b.src_offset - a.src_offset;
  both.dst_strides[both.dims] = b.dst_offset - a.dst_offset;
  ++both.dims;
  *joined = both;
  return true;
}

}  // namespace deltawire::kernels
