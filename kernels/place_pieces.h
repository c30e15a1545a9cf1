// The pieces of a strided copy: cuts of about equal size, which threads can share, the part within
// a window, and joins of two copies if that makes the kernels faster. Any piece may run on any
// thread, in any order, since no two write the same bytes.
#pragma once

#include <vector>

#include "kernels/kernels.h"

namespace deltawire::kernels {

/// A copy of at least this many destination bytes bypasses the cache. If a whole copy is larger
/// than the cache, its pieces should not be smaller than this.
inline constexpr size_t kStreamBytes = size_t{512} << 10;

/// The pieces of one copy. Their sizes differ by at most one step of the cut dimension.
class CopyPieces {
 public:
  /// Each piece has about `target_bytes` of the destination; a copy that is no larger is one piece.
  /// A copy whose dimensions are too short to cut is cut through its runs, between elements.
  CopyPieces(const StridedCopy& copy, const Convert& convert, size_t target_bytes);

  /// Returns 0 when the copy copies nothing.
  size_t count() const { return count_; }
  /// REQUIRES: i < count().
  StridedCopy operator[](size_t i) const;

 private:
  StridedCopy copy_;
  Convert convert_;
  size_t count_ = 0;
  size_t dim_ = 0;     ///< the dimension that is cut; copy_.dims: the run
  uint64_t step_ = 1;  ///< cuts are at multiples of this
};

uint64_t CopiedBytes(const StridedCopy& copy);

/// Returns the part of a copy that writes bytes [first, last) of the destination, in as few copies
/// as its loop nest allows. REQUIRES: destination strides are positive, and no element is cut.
std::vector<StridedCopy> ClipCopy(StridedCopy copy, const Convert& convert, uint64_t first,
                                  uint64_t last);

/// Joins two copies of the same shape and strides into one copy with one more dimension. If two
/// tensors alternate in columns (2 j and 2 j + 1), only the joined copy writes whole cache lines.
/// Returns false, with `joined` untouched, when shapes or strides differ or no dimension is free.
/// REQUIRES: both have the same source and destination; neither writes the other's bytes.
bool JoinCopies(const StridedCopy& a, const StridedCopy& b, StridedCopy* joined);

}  // namespace deltawire::kernels
