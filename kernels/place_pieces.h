// A strided copy cut into pieces of about equal size, so that threads can share it; and two copies
// joined into one where the kernels gain by it.
// Pure values; no allocation. Any piece may run on any thread, in any order: none writes another's
// bytes.
#pragma once

#include "kernels/kernels.h"

namespace deltawire::kernels {

/// A copy of so many destination bytes or more goes past the cache: whoever reads it next finds it
/// in memory. Pieces of what as a whole is larger than the cache should not be smaller.
inline constexpr size_t kStreamBytes = size_t{512} << 10;

/// The pieces of one copy. They differ by at most one step of the dimension that is cut.
class CopyPieces {
 public:
  /// `target_bytes` of the destination a piece, or the copy as one piece where it is no larger.
  /// A copy whose dimensions are too short to cut is cut through its runs, between elements.
  CopyPieces(const StridedCopy& copy, const Convert& convert, size_t target_bytes);

  /// 0 when the copy copies nothing.
  size_t count() const { return count_; }
  /// REQUIRES: i < count().
  StridedCopy operator[](size_t i) const;

 private:
  StridedCopy copy_;
  Convert convert_;
  size_t count_ = 0;
  size_t dim_ = 0;     ///< the dimension that is cut; copy_.dims: the run
  uint64_t step_ = 1;  ///< cuts fall on multiples of it
};

/// Destination bytes of a copy.
uint64_t CopiedBytes(const StridedCopy& copy);

/// Two copies of one shape and the same strides as one copy with a dimension more. For columns that
/// two tensors share in turn (2 j and 2 j + 1) this is what makes whole cache lines of them.
/// False, and `joined` untouched, where shapes or strides differ or the dimensions are used up.
/// REQUIRES: both have the same source and destination; neither writes the other's bytes.
bool JoinCopies(const StridedCopy& a, const StridedCopy& b, StridedCopy* joined);

}  // namespace deltawire::kernels
