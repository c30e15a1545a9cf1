#include "sender/export/mcore/program.h"

#include <algorithm>

namespace deltawire::mcore {
namespace {

Status Indivisible(std::string_view what, uint64_t n, uint64_t by) {
  return Errorf(StatusCode::kInvalidArgument, "{} {} cannot be cut into {}", n, what, by);
}

/// Collects boxes from runs of rows.
class Emitter {
 public:
  Emitter(const ParamCut& cut, std::span<const TensorView> views, uint32_t t, bool filled)
      : views_(views),
        filled_(filled),
        local_cols_(cut.local_cols()),
        first_col_(cut.split == Split::kColumns ? t * local_cols_ : 0),
        half_(cut.swap_halves ? cut.cols / 2 : 0) {}

  /// Local rows [local, local + count) are rows [row, row + count) of `part`.
  void Rows(const RowPart& part, uint64_t local, uint64_t row, uint64_t count) {
    if (part.zero || (part.filled && !filled_)) return;
    if (part.repeat > 1) return Repeated(part, local, row, count);
    const auto upto = [&](uint64_t n) {
      const uint64_t taken = std::min(n, count);
      local += taken;
      row += taken;
      count -= taken;
      return taken;
    };
    // The rest of a run, then whole runs, then the beginning of one.
    if (const uint64_t into = row % part.run; into != 0) {
      const uint64_t from = local, run = row / part.run;
      Add(part, from, run, 1, into, upto(part.run - into));
    }
    if (const uint64_t runs = count / part.run; runs > 0) {
      const uint64_t from = local, run = row / part.run;
      upto(runs * part.run);
      Add(part, from, run, runs, 0, part.run);
    }
    if (count > 0) Add(part, local, row / part.run, 1, 0, count);
  }

  std::vector<Box> Take() { return std::move(boxes_); }

 private:
  /// Takes each row of a repetition for itself: the first of all, the second of all, ...
  void Repeated(const RowPart& part, uint64_t local, uint64_t row, uint64_t count) {
    for (uint64_t nth = 0; nth < (filled_ ? part.repeat : 1); ++nth) {
      const uint64_t skipped = (nth + part.repeat - row % part.repeat) % part.repeat;
      if (skipped >= count) continue;
      const uint64_t n = (count - skipped - 1) / part.repeat + 1;
      const size_t before = boxes_.size();
      Add(part, local + skipped, 0, 1, (row + skipped) / part.repeat, n);
      for (size_t i = before; i < boxes_.size(); ++i) {
        Box& box = boxes_[i];
        box.src_stride[views_[part.tensor].transpose ? 3 : 2] *= part.repeat;
        box.filled = box.filled || nth > 0;
      }
    }
  }

  void Add(const RowPart& part, uint64_t local, uint64_t run, uint64_t runs, uint64_t into,
           uint64_t rows) {
    const uint64_t end = first_col_ + local_cols_;
    if (half_ == 0) return Add(part, local, run, runs, into, rows, first_col_, end, first_col_);
    // Each half that the shard has columns in, or a part of it.
    if (const uint64_t upto = std::min(end, half_); first_col_ < upto) {
      Add(part, local, run, runs, into, rows, first_col_, upto, first_col_ + half_);
    }
    if (const uint64_t from = std::max(first_col_, half_); from < end) {
      Add(part, local, run, runs, into, rows, from, end, from - half_);
    }
  }

  /// Maps columns [from, end) of the parameter to the HF columns that begin at `to`.
  void Add(const RowPart& part, uint64_t local, uint64_t run, uint64_t runs, uint64_t into,
           uint64_t rows, uint64_t from, uint64_t end, uint64_t to) {
    const TensorView& view = views_[part.tensor];
    Box box;
    box.tensor = part.tensor;
    box.src = local * local_cols_ + (from - first_col_);
    // The dimensions of the view: the packed one, runs, rows of a run, columns.
    const size_t r = view.transpose ? 2 : 1, c = view.transpose ? 1 : 3;
    box.lo[0] = part.lead;
    box.lo[r] = run;
    box.lo[r + 1] = part.at + into;
    box.lo[c] = to;
    box.n[0] = 1;
    box.n[r] = runs;
    box.n[r + 1] = rows;
    box.n[c] = end - from;
    box.src_stride[r] = part.run * local_cols_;
    box.src_stride[r + 1] = local_cols_;
    box.src_stride[c] = 1;
    box.filled = part.filled;
    boxes_.push_back(box);
  }

  std::span<const TensorView> views_;
  bool filled_;
  uint64_t local_cols_, first_col_, half_;
  std::vector<Box> boxes_;
};

}  // namespace

Status CheckCut(const ParamCut& cut) {
  if (cut.swap_halves && cut.cols % 2 != 0) return Indivisible("columns", cut.cols, 2);
  if (cut.split == Split::kColumns && cut.cols % cut.world != 0) {
    return Indivisible("columns", cut.cols, cut.world);
  }
  if (cut.split == Split::kRows && cut.rows % cut.world != 0) {
    return Indivisible("rows", cut.rows, cut.world);
  }
  for (const RowPart& part : cut.parts) {
    if (part.run == 0 || part.rows % part.run != 0) {
      return Indivisible("rows", part.rows, part.run == 0 ? 0 : part.rows / part.run);
    }
    if (part.pitch != 0 && part.at + part.run > part.pitch) {
      return Errorf(StatusCode::kInvalidArgument, "runs of {} rows at {} do not fit a pitch of {}",
                    part.run, part.at, part.pitch);
    }
    if (part.repeat == 0 || part.rows % part.repeat != 0) {
      return Indivisible("rows", part.rows, part.repeat);
    }
    if (part.repeat > 1 && part.pitch != 0) {
      return absl::InvalidArgumentError("repeated rows are one run");
    }
    if (part.pitch == 0 && part.run != part.rows) {
      return absl::InvalidArgumentError("several runs want a pitch");
    }
    const bool own_share = cut.per_shard && cut.split == Split::kRows;
    const uint64_t share = own_share ? part.rows / cut.world : part.rows;
    if (own_share && part.rows % cut.world != 0) {
      return Indivisible("rows", part.rows, cut.world);
    }
    const uint64_t turn = cut.block != 0 ? cut.block : 1;
    if (cut.groups == 0 || share % cut.groups != 0) return Indivisible("rows", share, cut.groups);
    if (share % turn != 0) {
      return Errorf(StatusCode::kInvalidArgument, "{} rows are no whole number of blocks of {}",
                    share, turn);
    }
  }
  return absl::OkStatus();
}

std::vector<Box> ShardBoxes(const ParamCut& cut, std::span<const TensorView> views, uint32_t t,
                            RowRange only, bool filled) {
  Emitter out(cut, views, t, filled);
  const bool own_share = cut.per_shard && cut.split == Split::kRows;
  const uint64_t shards = own_share ? cut.world : 1;
  // This shard's window on the rows that the parts form together.
  const uint64_t first_row = own_share || cut.split != Split::kRows ? 0 : t * cut.local_rows();
  const uint64_t begin = first_row + only.begin;
  const uint64_t end = first_row + std::min(only.end, cut.local_rows());
  uint64_t rounds = cut.groups;
  if (cut.block != 0 && !cut.parts.empty()) rounds = cut.parts[0].rows / shards / cut.block;
  uint64_t at = 0;
  for (uint64_t round = 0; round < rounds && at < end; ++round) {
    for (const RowPart& part : cut.parts) {
      const uint64_t share = part.rows / shards / rounds;
      const uint64_t from = std::max(at, begin), to = std::min(at + share, end);
      if (from < to) {
        const uint64_t first = (own_share ? t * (part.rows / shards) : 0) + round * share;
        out.Rows(part, from - begin, first + (from - at), to - from);
      }
      at += share;
    }
  }
  return out.Take();
}

kernels::StridedCopy CopyOf(const Box& box, const TensorView& tensor, unsigned src_width,
                            unsigned dst_width) {
  const View view = tensor.view();
  View dst_stride{};
  uint64_t step = 1;
  for (size_t d = 4; d-- > 0;) {
    dst_stride[d] = step;
    step *= view[d];
  }
  kernels::StridedCopy copy;
  uint64_t first = 0;
  for (size_t d = 0; d < 4; ++d) first += box.lo[d] * dst_stride[d];
  copy.src_offset = static_cast<int64_t>(box.src * src_width);
  copy.dst_offset = static_cast<int64_t>(first * dst_width);
  // The innermost run has all elements if they are contiguous in the shard along the last
  // dimension, otherwise one.
  const bool run = box.src_stride[3] == 1;
  copy.run_bytes = (run ? box.n[3] : 1) * dst_width;
  for (size_t d = 0; d < (run ? 3u : 4u); ++d) {
    if (box.n[d] == 1) continue;
    copy.counts[copy.dims] = box.n[d];
    copy.src_strides[copy.dims] = static_cast<int64_t>(box.src_stride[d] * src_width);
    copy.dst_strides[copy.dims] = static_cast<int64_t>(dst_stride[d] * dst_width);
    ++copy.dims;
  }
  return copy;
}

kernels::StridedCopy Reversed(const kernels::StridedCopy& copy, unsigned src_width,
                              unsigned dst_width) {
  kernels::StridedCopy back = copy;
  std::swap(back.src_offset, back.dst_offset);
  back.run_bytes = copy.run_bytes / dst_width * src_width;
  for (size_t d = 0; d < copy.dims; ++d) std::swap(back.src_strides[d], back.dst_strides[d]);
  return back;
}

}  // namespace deltawire::mcore
