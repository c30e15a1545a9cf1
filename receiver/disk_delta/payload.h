// The form of a changed tensor in a delta on a disk (docs/disk_delta.md, "A version"): one zstd
// frame. The functions are pure, take two tensors of one size, and make a pass or two
// over both, and one compression. kResourceExhausted: zstd has no memory.
#pragma once

#include <cstddef>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace deltawire::receiver {

/// All new bytes XOR the old ones.
StatusOr<std::vector<std::byte>> EncodeXor(Bytes was, Bytes is);
/// u32 count, as many u32 positions, as many bytes; little-endian. REQUIRES: positions fit 32 bits.
StatusOr<std::vector<std::byte>> EncodeOverwrite(Bytes was, Bytes is);

}  // namespace deltawire::receiver
