// A trainer's parameter and where its bytes are: host memory, a CUDA device, or behind a callback.
// A view: the trainer's memory outlives it, and all work on device memory is complete.
#pragma once

#include <cstdint>
#include <functional>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "sender/export/mcore/transfer.h"

namespace deltawire {

inline constexpr int kHostMemory = -1;

/// Copies bytes [offset, offset + to.size()) of a parameter to host memory; done when it returns.
/// Called on the caller's own thread.
using ByteReader = std::function<Status(uint64_t offset, MutableBytes to)>;

/// Row-major.
struct LiveTensor {
  mcore::LiveParam param;
  Bytes data;                ///< with `read`, only the size counts
  int device = kHostMemory;  ///< or the number of the CUDA device that `data` lies on
  ByteReader read = {};      ///< where set, the only way to the bytes

  bool on_host() const { return device == kHostMemory && !read; }
};

}  // namespace deltawire
