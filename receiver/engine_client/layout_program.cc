#include "receiver/engine_client/layout_program.h"

#include <algorithm>
#include <limits>

namespace deltawire::engine {
namespace {

constexpr auto kInvalid = StatusCode::kInvalidArgument;

/// One bit for each byte-sized unit of a storage, to see whether two boxes claim a place.
class Claims {
 public:
  Claims(uint64_t bytes, unsigned unit) : unit_(unit), taken_(bytes / unit, false) {}
  /// False when some of it is taken already.
  bool Take(uint64_t offset, uint64_t bytes) {
    for (uint64_t i = offset / unit_; i < (offset + bytes) / unit_; ++i) {
      if (taken_[i]) return false;
      taken_[i] = true;
    }
    return true;
  }

 private:
  const unsigned unit_;
  std::vector<bool> taken_;
};

/// Some byte of a tensor stands in two boxes.
bool Overlap(std::span<const OrderedBox> boxes, uint64_t tensor_bytes, unsigned width) {
  if (boxes.size() < 2) return false;
  Claims claims(tensor_bytes, width);
  for (const OrderedBox& box : boxes) {
    for (Run run = box.RunAt(0); run.bytes > 0; run = box.RunAt(run.tensor_offset + run.bytes)) {
      if (!claims.Take(run.tensor_offset, run.bytes)) return true;
    }
  }
  return false;
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
  return ordered;
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
  // One storage at a time, so that the claims of one are the memory that this takes.
  for (size_t s = 0; s < by_storage.size(); ++s) {
    unsigned unit = 8;
    for (const auto& [tensor, i] : by_storage[s]) {
      unit = std::min(unit, DTypeBytes(layout.tensor(tensor).dtype));
    }
    Claims claims(program.storages_[s].bytes, unit);
    for (const auto& [tensor, i] : by_storage[s]) {
      const OrderedBox& box = by_tensor[tensor][i];
      for (Run run = box.RunAt(0); run.bytes > 0; run = box.RunAt(run.tensor_offset + run.bytes)) {
        if (claims.Take(run.storage_offset, run.bytes)) continue;
        return Errorf(kInvalid, "{}: byte {} is claimed twice, the second time by {}",
                      program.storages_[s].name, run.storage_offset, layout.tensor(tensor).name);
      }
      program.mapped_[s] += box.bytes();
    }
  }
  program.first_.push_back(0);
  for (size_t t = 0; t < by_tensor.size(); ++t) {
    auto& list = by_tensor[t];
    program.several_.push_back(Overlap(list, layout.bytes(t), DTypeBytes(layout.tensor(t).dtype)));
    for (OrderedBox& box : list) program.boxes_.push_back(std::move(box));
    program.first_.push_back(program.boxes_.size());
  }
  return program;
}

}  // namespace deltawire::engine
