// A layout program: the strided copies between one shard of a parameter and HF tensors. Run
// forwards, the list exports; run backwards, the same list shards. Rules: docs/model_families.md.
// Units are elements, except for the bytes of CopyOf. Errors name the size that does not divide.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "kernels/kernels.h"
#include "sender/export/mcore/family.h"

namespace deltawire::mcore {

/// The sizes of an HF tensor's dimensions as programs see it: [packed][rows / pitch][pitch][cols],
/// or, when transposed, [packed][cols][rows / pitch][pitch]. Row-major, like the tensor's own
/// memory.
using View = std::array<uint64_t, 4>;

/// An HF tensor's properties that a program needs.
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

/// A Part with its expressions evaluated, for one parameter of one layer.
struct RowPart {
  uint32_t tensor = 0;  ///< index into the plan's tensors
  uint64_t rows = 0;
  uint64_t at = 0;
  uint64_t run = 0;     ///< rows of one run
  uint64_t pitch = 0;   ///< 0: one run
  uint64_t lead = 0;    ///< index along the tensor's packed dimension
  uint64_t repeat = 1;  ///< rows in succession that are one HF row, of which the first is exported
  bool filled = false;  ///< no row is exported
  bool zero = false;    ///< no row is copied either way; `tensor` does not count
  uint64_t hf_rows() const { return rows / repeat; }
};

/// One parameter of the whole model and how it is cut into `world` shards.
struct ParamCut {
  std::vector<RowPart> parts;
  uint64_t rows = 0;  ///< with padding
  uint64_t cols = 1;
  uint64_t groups = 1;
  uint64_t block = 0;
  bool per_shard = false;
  bool flat = false;         ///< the trainer's tensor has one dimension
  bool swap_halves = false;  ///< HF has the two halves of the columns exchanged
  Split split = Split::kNone;
  uint32_t world = 1;  ///< number of shards; 1 if it is not split

  uint64_t local_rows() const { return split == Split::kRows ? rows / world : rows; }
  uint64_t local_cols() const { return split == Split::kColumns ? cols / world : cols; }
};

/// Checks that all sizes divide. The message lacks the parameter's name.
Status CheckCut(const ParamCut& cut);

/// A box of an HF tensor's view, and the places of its elements in a shard.
struct Box {
  uint32_t tensor = 0;
  View lo{}, n{};
  uint64_t src = 0;     ///< index of the first element
  View src_stride{};    ///< step along each dimension of the view
  bool filled = false;  ///< copied from HF, and never to it
};

/// Rows [begin, end) of a shard.
struct RowRange {
  uint64_t begin = 0, end = UINT64_MAX;
};

/// Returns the boxes of shard `t`, or of its rows `only`; then sources are counted from the first
/// of these rows. `views[i]` describes tensor i. With `filled`, boxes that are copied from HF alone
/// are returned, too. REQUIRES: CheckCut(cut).ok().
std::vector<Box> ShardBoxes(const ParamCut& cut, std::span<const TensorView> views, uint32_t t,
                            RowRange only = {}, bool filled = false);

/// Returns the box as a copy from a shard to a tensor, with elements of these widths in bytes.
kernels::StridedCopy CopyOf(const Box& box, const TensorView& view, unsigned src_width,
                            unsigned dst_width);
/// Returns the opposite copy. The widths are those given to CopyOf.
kernels::StridedCopy Reversed(const kernels::StridedCopy& copy, unsigned src_width,
                              unsigned dst_width);

}  // namespace deltawire::mcore
