// Walks a strided copy run by run, in the plainest way, as an oracle for what moves its bytes
// faster. Owner: none; a free function. Threads: any. Cost: a division for each dimension of each
// run. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

namespace deltawire::testing {

/// Calls fn(source byte, destination byte) for the first byte of each run.
template <typename Fn>
void ForEachRunOf(const kernels::StridedCopy& copy, const Fn& fn) {
  uint64_t runs = 1;
  for (size_t d = 0; d < copy.dims; ++d) runs *= copy.counts[d];
  for (uint64_t r = 0; r < runs; ++r) {
    int64_t src = copy.src_offset, dst = copy.dst_offset;
    uint64_t rest = r;
    for (size_t d = copy.dims; d-- > 0;) {
      const auto digit = static_cast<int64_t>(rest % copy.counts[d]);
      rest /= copy.counts[d];
      src += digit * copy.src_strides[d];
      dst += digit * copy.dst_strides[d];
    }
    fn(static_cast<uint64_t>(src), static_cast<uint64_t>(dst));
  }
}

}  // namespace deltawire::testing
