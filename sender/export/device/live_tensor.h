// A view of a trainer's parameter, whose bytes are in host memory, on a CUDA device, or behind a
// callback. The trainer's memory outlives it. All work on device memory is complete.
#pragma once

#include <cstdint>
#include <functional>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "sender/export/mcore/transfer.h"

namespace deltawire {

inline constexpr int kHostMemory = -1;

/// Copies bytes [offset, offset + to.size()) of a parameter to host memory before it returns. It is
/// called on the thread of the call that got the parameter.
using ByteReader = std::function<Status(uint64_t offset, MutableBytes to)>;

/// A row-major parameter.
struct LiveTensor {
  mcore::LiveParam param;
  Bytes data;                ///< if `read` is set, only the size is used
  int device = kHostMemory;  ///< or the number of the CUDA device that `data` lies on
  ByteReader read = {};      ///< if set, the only way to the bytes

  bool on_host() const { return device == kHostMemory && !read; }
};

}  // namespace deltawire
