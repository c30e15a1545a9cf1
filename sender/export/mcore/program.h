// A layout program: the strided copies between one shard of a parameter and HF tensors.
// Pure functions over plain values. The same list, run forwards, exports; run backwards, it shards.
// Units are elements until Copies, which gives bytes. Errors name what does not divide.
// Source of the rules: docs/model_families.md.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "kernels/kernels.h"
#include "sender/export/mcore/family.h"

namespace deltawire::mcore {

/// An HF tensor as programs see it: [packed][rows / pitch][pitch][cols], or, when transposed,
/// [packed][cols][rows / pitch][pitch]. Row-major, so it is the tensor's own memory.
using View = std::array<uint64_t, 4>;

/// What a program needs to know of an HF tensor.
struct TensorView {
  uint64_t packed = 1;
  uint64_t rows = 0;   ///< of one packed matrix
  uint64_t pitch = 0;  ///< divides rows
  uint64_t cols = 1;
  bool transpose = false;

  View view() const {
    return transpose ? View{packed, cols, rows / pitch, pitch}
                     : View{packed, rows / pitch, pitch, cols};
  }
};

/// Part::rows and the like as numbers, of one parameter of one layer.
struct RowPart {
  uint32_t tensor = 0;  ///< index into the plan's tensors
  uint64_t rows = 0;
  uint64_t at = 0;
  uint64_t run = 0;    ///< rows of one run
  uint64_t pitch = 0;  ///< 0: one run
  uint64_t lead = 0;   ///< index along the tensor's packed dimension
};

/// One parameter of the whole model and how it is cut into `world` shards.
struct ParamCut {
  std::vector<RowPart> parts;
  uint64_t rows = 0;  ///< with padding
  uint64_t cols = 1;
  uint64_t groups = 1;
  uint64_t block = 0;
  bool per_shard = false;
  bool flat = false;  ///< the trainer's tensor has one dimension
  Split split = Split::kNone;
  uint32_t world = 1;  ///< shards; 1 where it is not split

  uint64_t local_rows() const { return split == Split::kRows ? rows / world : rows; }
  uint64_t local_cols() const { return split == Split::kColumns ? cols / world : cols; }
};

/// Checks that everything divides. The message lacks the parameter's name.
Status CheckCut(const ParamCut& cut);

/// A box of an HF tensor's view, and where its elements lie in a shard.
struct Box {
  uint32_t tensor = 0;
  View lo{}, n{};
  uint64_t src = 0;   ///< of the first element
  View src_stride{};  ///< along each dimension of the view
};

/// Some of a shard's rows.
struct RowRange {
  uint64_t begin = 0, end = UINT64_MAX;
};

/// The boxes of shard `t`, or of the rows `only` of it; then sources count from the first of them.
/// `views[i]` describes tensor i. REQUIRES: CheckCut(cut).ok().
std::vector<Box> ShardBoxes(const ParamCut& cut, std::span<const TensorView> views, uint32_t t,
                            RowRange only = {});

/// The box as a copy from a shard of elements of `src_width` bytes into a tensor of `dst_width`.
kernels::StridedCopy CopyOf(const Box& box, const TensorView& view, unsigned src_width,
                            unsigned dst_width);
/// The way back. The widths are those that `copy` was made with.
kernels::StridedCopy Reversed(const kernels::StridedCopy& copy, unsigned src_width,
                              unsigned dst_width);

}  // namespace deltawire::mcore
