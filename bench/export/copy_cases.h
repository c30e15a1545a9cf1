// The kinds of copies that layout programs consist of, each as a few strided copies between two
// buffers of about a given size. Pure values.
#pragma once

#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace deltawire::bench {

struct CopyCase {
  std::string name;
  std::vector<kernels::StridedCopy> copies;
  kernels::Convert convert;
  uint64_t src_bytes = 0;  ///< size of the source buffer, all of which the copies read
  uint64_t dst_bytes = 0;  ///< size of the destination buffer, all of which they write
};

/// Every case, with a destination of about `bytes`.
std::vector<CopyCase> CopyCases(uint64_t bytes);

}  // namespace deltawire::bench
