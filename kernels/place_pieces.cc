#include "kernels/place_pieces.h"

#include <algorithm>
#include <iterator>

namespace deltawire::kernels {
namespace {

/// A cut through a dimension of single elements leaves at least this many in each piece, so that a
/// transposition's tile is not narrower than a few cache lines.
constexpr uint64_t kElementsTogether = 128;

constexpr uint64_t kRunStep = 64;  // bytes of the destination: a cache line

StridedCopy WithoutDim(StridedCopy copy, size_t dim) {
  --copy.dims;
  for (size_t i = dim; i < copy.dims; ++i) {
    copy.counts[i] = copy.counts[i + 1];
    copy.src_strides[i] = copy.src_strides[i + 1];
    copy.dst_strides[i] = copy.dst_strides[i + 1];
  }
  return copy;
}

/// Moves the copy by `steps` of dimension `dim` of `of`.
void Advance(StridedCopy* copy, const StridedCopy& of, size_t dim, int64_t steps) {
  copy->src_offset += steps * of.src_strides[dim];
  copy->dst_offset += steps * of.dst_strides[dim];
}

void ClipTo(const StridedCopy& copy, const Convert& convert, int64_t first, int64_t last,
            std::vector<StridedCopy>* out) {
  const auto end_of = [](const StridedCopy& c) {
    int64_t end = c.dst_offset + static_cast<int64_t>(c.run_bytes);
    for (size_t i = 0; i < c.dims; ++i) {
      end += static_cast<int64_t>(c.counts[i] - 1) * c.dst_strides[i];
    }
    return end;
  };
  const int64_t begin = copy.dst_offset, end = end_of(copy);
  if (end <= first || begin >= last) return;
  if (begin >= first && end <= last) return out->push_back(copy);
  if (copy.dims == 0) {
    StridedCopy run = copy;
    run.dst_offset = std::max(begin, first);
    run.run_bytes = static_cast<size_t>(std::min(end, last) - run.dst_offset);
    const int64_t skipped = run.dst_offset - begin;
    run.src_offset += convert.moves_only() ? skipped
                                           : skipped / static_cast<int64_t>(WidthOf(convert.to)) *
                                                 static_cast<int64_t>(WidthOf(convert.from));
    return out->push_back(run);
  }
  // Along the dimension with the longest steps, rows within the window stay together, and each row
  // that the window cuts is clipped alone.
  const auto* const longest = std::max_element(copy.dst_strides, copy.dst_strides + copy.dims);
  const auto dim = static_cast<size_t>(longest - copy.dst_strides);
  const int64_t stride = *longest, count = static_cast<int64_t>(copy.counts[dim]);
  const StridedCopy inner = WithoutDim(copy, dim);
  const int64_t reach = end_of(inner) - begin;
  const int64_t within = first <= begin ? 0 : (first - begin + stride - 1) / stride;
  const int64_t within_end =
      last < begin + reach ? 0 : std::min(count, (last - begin - reach) / stride + 1);
  if (within < within_end) {
    StridedCopy whole = copy;
    whole.counts[dim] = static_cast<uint64_t>(within_end - within);
    Advance(&whole, copy, dim, within);
    out->push_back(whole);
  }
  const int64_t met = begin + reach > first ? 0 : (first - begin - reach) / stride + 1;
  for (int64_t i = met; i < count && begin + i * stride < last; ++i) {
    if (i >= within && i < within_end) {
      i = within_end - 1;
      continue;
    }
    StridedCopy step = inner;
    Advance(&step, copy, dim, i);
    ClipTo(step, convert, first, last, out);
  }
}

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

std::vector<StridedCopy> ClipCopy(StridedCopy copy, const Convert& convert, uint64_t first,
                                  uint64_t last) {
  std::vector<StridedCopy> out;
  if (CopiedBytes(copy) == 0) return out;
  ClipTo(copy, convert, static_cast<int64_t>(first), static_cast<int64_t>(last), &out);
  return out;
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
