#include "receiver/engine_client/layout_program.h"

#include <algorithm>
#include <limits>

namespace deltawire::engine {
namespace {

constexpr auto kInvalid = StatusCode::kInvalidArgument;

/// One bit for each unit of a span of memory, to see whether two boxes claim a place.
class Claims {
 public:
  Claims(uint64_t first, uint64_t last, unsigned unit)
      : first_(first), unit_(unit), taken_(((last - first) / unit + 63) / 64, 0) {}
  /// False when some of it is taken already.
  bool Take(uint64_t offset, uint64_t bytes) {
    uint64_t at = (offset - first_) / unit_;
    const uint64_t end = (offset + bytes - first_) / unit_;
    while (at < end) {
      const uint64_t bits = std::min<uint64_t>(64 - at % 64, end - at);
      const uint64_t mask = (~uint64_t{0} >> (64 - bits)) << (at % 64);
      uint64_t& word = taken_[at / 64];
      if ((word & mask) != 0) return false;
      word |= mask;
      at += bits;
    }
    return true;
  }

 private:
  const uint64_t first_;
  const unsigned unit_;
  std::vector<uint64_t> taken_;
};

/// The place of a box's bytes on one of its sides.
struct Span {
  uint64_t first, last;
  const OrderedBox* box;
  uint32_t tensor;
};

/// Calls fn(cluster, its last byte) for each cluster of spans that overlap one another, directly or
/// through others of the cluster. Most clusters are one span.
template <typename Fn>
void ForEachCluster(std::vector<Span> spans, const Fn& fn) {
  std::sort(spans.begin(), spans.end(),
            [](const Span& a, const Span& b) { return a.first < b.first; });
  for (size_t begin = 0; begin < spans.size();) {
    uint64_t last = spans[begin].last;
    size_t end = begin + 1;
    for (; end < spans.size() && spans[end].first < last; ++end) {
      last = std::max(last, spans[end].last);
    }
    fn(std::span(spans).subspan(begin, end - begin), last);
    begin = end;
  }
}

/// Whether some byte of a tensor is in two of its boxes.
bool Overlap(std::span<const OrderedBox> boxes, unsigned width) {
  if (boxes.size() < 2) return false;
  std::vector<Span> spans;
  for (const OrderedBox& box : boxes) spans.push_back({box.first(), box.last(), &box, 0});
  bool found = false;
  ForEachCluster(std::move(spans), [&](std::span<const Span> cluster, uint64_t last) {
    if (found || cluster.size() == 1) return;
    Claims claims(cluster[0].first, last, width);
    for (const Span& span : cluster) {
      const OrderedBox& box = *span.box;
      for (Run run = box.RunAt(0); run.bytes > 0 && !found;
           run = box.RunAt(run.tensor_offset + run.bytes)) {
        found = !claims.Take(run.tensor_offset, run.bytes);
      }
    }
  });
  return found;
}

/// Refuses boxes that put two elements into one byte of the storage. It costs nothing for a box
/// that is alone and whose strides show that it does not; else a bit of memory for each unit from
/// the cluster's first byte to its last one, and a few nanoseconds for each run and each 64 units
/// of it.
Status CheckClaims(const Layout& layout, const std::string& storage, std::span<const Span> cluster,
                   uint64_t last) {
  if (cluster.size() == 1 && cluster[0].box->storage_nests()) return absl::OkStatus();
  unsigned unit = 8;
  for (const Span& span : cluster) {
    unit = std::min(unit, DTypeBytes(layout.tensor(span.tensor).dtype));
  }
  // Widths are powers of two and divide their own boxes' offsets, so the least one divides all.
  Claims claims(cluster[0].first, last, unit);
  for (const Span& span : cluster) {
    const OrderedBox& box = *span.box;
    for (Run run = box.RunAt(0); run.bytes > 0; run = box.RunAt(run.tensor_offset + run.bytes)) {
      if (claims.Take(run.storage_offset, run.bytes)) continue;
      return Errorf(kInvalid, "{}: byte {} is claimed twice, the second time by {}", storage,
                    run.storage_offset, layout.tensor(span.tensor).name);
    }
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<OrderedBox> OrderedBox::Create(const Box& box, uint64_t tensor_bytes,
                                        uint64_t storage_bytes, unsigned width) {
  const kernels::StridedCopy& copy = box.copy;
  if (copy.dims > kernels::StridedCopy::kMaxDims || copy.run_bytes == 0 || copy.src_offset < 0 ||
      copy.dst_offset < 0) {
    return Errorf(kInvalid, "a box of {} dimensions at {} and {}", copy.dims, copy.src_offset,
                  copy.dst_offset);
  }
  OrderedBox ordered;
  ordered.storage_ = box.storage;
  ordered.offset_ = static_cast<uint64_t>(copy.src_offset);
  ordered.dst_offset_ = static_cast<uint64_t>(copy.dst_offset);
  ordered.run_bytes_ = copy.run_bytes;
  bool whole_elements = (ordered.offset_ | ordered.dst_offset_ | copy.run_bytes) % width == 0;
  for (size_t d = 0; d < copy.dims; ++d) {
    if (copy.counts[d] == 0) return Errorf(kInvalid, "an empty box");
    if (copy.counts[d] == 1) continue;
    if (copy.src_strides[d] <= 0 || copy.dst_strides[d] <= 0) {
      return Errorf(kInvalid, "a box that walks backwards, or stands still");
    }
    whole_elements &= (copy.src_strides[d] | copy.dst_strides[d]) % width == 0;
    ordered.dims_.push_back(
        {copy.counts[d], static_cast<uint64_t>(copy.src_strides[d]), copy.dst_strides[d]});
  }
  if (!whole_elements) return Errorf(kInvalid, "a box that cuts elements of {} bytes", width);
  std::sort(ordered.dims_.begin(), ordered.dims_.end(),
            [](const Dim& a, const Dim& b) { return a.src_stride > b.src_stride; });

  // From the innermost: a step of each dimension must clear all that lies inside of it.
  uint64_t src_span = copy.run_bytes;
  uint64_t dst_span = copy.run_bytes;
  ordered.bytes_ = copy.run_bytes;
  for (auto d = ordered.dims_.rbegin(); d != ordered.dims_.rend(); ++d) {
    if (d->src_stride < src_span) return Errorf(kInvalid, "a box whose elements overlap");
    uint64_t src_step, dst_step;
    if (__builtin_mul_overflow(d->count - 1, d->src_stride, &src_step) ||
        __builtin_mul_overflow(d->count - 1, static_cast<uint64_t>(d->dst_stride), &dst_step) ||
        __builtin_add_overflow(src_span, src_step, &src_span) ||
        __builtin_add_overflow(dst_span, dst_step, &dst_span)) {
      return Errorf(kInvalid, "a box beyond all memory");
    }
    ordered.bytes_ *= d->count;
  }
  if (ordered.offset_ > tensor_bytes || src_span > tensor_bytes - ordered.offset_) {
    return Errorf(kInvalid, "a box that leaves the tensor");
  }
  if (ordered.dst_offset_ > storage_bytes || dst_span > storage_bytes - ordered.dst_offset_) {
    return Errorf(kInvalid, "a box that leaves the storage");
  }
  ordered.last_ = ordered.offset_ + src_span;
  ordered.dst_last_ = ordered.dst_offset_ + dst_span;
  ordered.dst_nests_ = Nests(ordered.dims_, copy.run_bytes);
  return ordered;
}

bool OrderedBox::Nests(std::vector<Dim> dims, uint64_t run_bytes) {
  std::sort(dims.begin(), dims.end(),
            [](const Dim& a, const Dim& b) { return a.dst_stride < b.dst_stride; });
  uint64_t span = run_bytes;
  for (const Dim& d : dims) {
    const auto step = static_cast<uint64_t>(d.dst_stride);
    if (step < span) return false;
    span += (d.count - 1) * step;  // no overflow: the span lies in the storage
  }
  return true;
}

Run OrderedBox::RunAt(uint64_t at) const {
  if (at >= last_) return {};
  uint64_t rest = at > offset_ ? at - offset_ : 0;
  Run run{.tensor_offset = offset_, .storage_offset = dst_offset_, .bytes = run_bytes_};
  // The digits of `at`. Where a digit is beyond its dimension, or the last run is passed, the next
  // run is the first one of the next higher index.
  uint64_t digits[kernels::StridedCopy::kMaxDims];
  size_t d = 0;
  bool beyond = false;
  for (; d < dims_.size(); ++d) {
    digits[d] = rest / dims_[d].src_stride;
    if (digits[d] >= dims_[d].count) {
      beyond = true;
      break;
    }
    rest -= digits[d] * dims_[d].src_stride;
  }
  if (beyond || rest >= run_bytes_) {
    for (size_t i = d; i < dims_.size(); ++i) digits[i] = 0;
    while (d > 0 && ++digits[d - 1] == dims_[d - 1].count) digits[--d] = 0;
    if (d == 0) return {};
  }
  for (size_t i = 0; i < dims_.size(); ++i) {
    run.tensor_offset += digits[i] * dims_[i].src_stride;
    run.storage_offset += digits[i] * static_cast<uint64_t>(dims_[i].dst_stride);
  }
  return run;
}

kernels::StridedCopy OrderedBox::CopyFrom(size_t dim, uint64_t src, uint64_t dst) const {
  kernels::StridedCopy copy;
  copy.src_offset = static_cast<int64_t>(src);
  copy.dst_offset = static_cast<int64_t>(dst);
  copy.run_bytes = run_bytes_;
  for (size_t d = dim; d < dims_.size(); ++d, ++copy.dims) {
    copy.counts[copy.dims] = dims_[d].count;
    copy.src_strides[copy.dims] = static_cast<int64_t>(dims_[d].src_stride);
    copy.dst_strides[copy.dims] = dims_[d].dst_stride;
  }
  return copy;
}

kernels::StridedCopy OrderedBox::copy() const { return CopyFrom(0, offset_, dst_offset_); }

void OrderedBox::Pieces(uint64_t begin, uint64_t end,
                        std::vector<kernels::StridedCopy>* pieces) const {
  PiecesFrom(0, offset_, dst_offset_, begin, end, pieces);
}

void OrderedBox::PiecesFrom(size_t dim, uint64_t src, uint64_t dst, uint64_t begin, uint64_t end,
                            std::vector<kernels::StridedCopy>* pieces) const {
  // Of the tensor, from the first byte of this part of the box to its last one.
  uint64_t inner = run_bytes_;
  for (size_t d = dims_.size(); d-- > dim + 1;) inner += (dims_[d].count - 1) * dims_[d].src_stride;
  uint64_t span = inner;
  if (dim < dims_.size()) span += (dims_[dim].count - 1) * dims_[dim].src_stride;
  if (src >= end || src + span <= begin) return;
  if (src >= begin && src + span <= end) {
    pieces->push_back(CopyFrom(dim, src, dst));
    return;
  }
  if (dim == dims_.size()) {
    const uint64_t first = std::max(src, begin), last = std::min(src + run_bytes_, end);
    kernels::StridedCopy run = CopyFrom(dim, first, dst + (first - src));
    run.run_bytes = last - first;
    pieces->push_back(run);
    return;
  }
  // Indices of this dimension that lie inside are one piece; those at both ends are taken apart.
  const uint64_t count = dims_[dim].count, stride = dims_[dim].src_stride;
  const auto dst_stride = static_cast<uint64_t>(dims_[dim].dst_stride);
  uint64_t at = src < begin ? (begin - src) / stride : 0;
  const auto step = [&](uint64_t i) {
    PiecesFrom(dim + 1, src + i * stride, dst + i * dst_stride, begin, end, pieces);
  };
  if (src + at * stride < begin) step(at++);
  const uint64_t first = at;
  while (at < count && src + at * stride + inner <= end) ++at;
  if (at > first) {
    kernels::StridedCopy inside = CopyFrom(dim, src + first * stride, dst + first * dst_stride);
    inside.counts[0] = at - first;
    pieces->push_back(inside);
  }
  if (at < count) step(at);
}

StatusOr<LayoutProgram> LayoutProgram::Create(const Layout& layout, std::vector<Storage> storages,
                                              std::span<const Box> boxes) {
  LayoutProgram program;
  program.storages_ = std::move(storages);
  program.mapped_.assign(program.storages_.size(), 0);
  std::vector<std::vector<OrderedBox>> by_tensor(layout.size());
  std::vector<std::vector<std::pair<uint32_t, size_t>>> by_storage(program.storages_.size());
  for (const Box& box : boxes) {
    if (box.tensor >= layout.size() || box.storage >= program.storages_.size()) {
      return Errorf(kInvalid, "a box of tensor {} in storage {}: there are {} and {}", box.tensor,
                    box.storage, layout.size(), program.storages_.size());
    }
    const TensorMeta& tensor = layout.tensor(box.tensor);
    const Storage& storage = program.storages_[box.storage];
    auto ordered =
        OrderedBox::Create(box, layout.bytes(box.tensor), storage.bytes, DTypeBytes(tensor.dtype));
    if (!ordered.ok()) {
      return Annotate(ordered.status(), fmt::format("{} in {}", tensor.name, storage.name));
    }
    by_storage[box.storage].emplace_back(box.tensor, by_tensor[box.tensor].size());
    by_tensor[box.tensor].push_back(*std::move(ordered));
  }
  for (size_t s = 0; s < by_storage.size(); ++s) {
    std::vector<Span> spans;
    for (const auto& [tensor, i] : by_storage[s]) {
      const OrderedBox& box = by_tensor[tensor][i];
      spans.push_back({box.storage_first(), box.storage_last(), &box, tensor});
      program.mapped_[s] += box.bytes();
    }
    Status claimed_twice;
    ForEachCluster(std::move(spans), [&](std::span<const Span> cluster, uint64_t last) {
      if (!claimed_twice.ok()) return;
      claimed_twice = CheckClaims(layout, program.storages_[s].name, cluster, last);
    });
    DW_RETURN_IF_ERROR(claimed_twice);
  }
  program.first_.push_back(0);
  for (size_t t = 0; t < by_tensor.size(); ++t) {
    auto& list = by_tensor[t];
    program.several_.push_back(Overlap(list, DTypeBytes(layout.tensor(t).dtype)));
    for (OrderedBox& box : list) program.boxes_.push_back(std::move(box));
    program.first_.push_back(program.boxes_.size());
  }
  return program;
}

}  // namespace deltawire::engine
