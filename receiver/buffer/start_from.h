// The start of a receiver's buffer from a model directory that its machine has anyway, such as the
// checkpoint that training begins with. The first pull then fetches only the chunks that differ.
// Each byte is read, copied and digested once, by threads of its own. One that hangs in the kernel
// (a file server that is gone) is left behind. Errors name the directory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>

#include "common/base/status.h"
#include "receiver/buffer/buffer.h"

namespace deltawire::receiver {

struct StartedFrom {
  uint64_t bytes = 0;  ///< copied
  size_t tensors = 0;  ///< copied
  size_t others = 0;   ///< tensors that the directory lacks, or has in another shape or type
  Status first_error;  ///< the reason why a tensor could not be read
};

/// Copies each tensor of `buffer` that the model directory `from` has with the same name, type and
/// shape. The files may hold anything, and change meanwhile: each chunk gets the digest of the
/// bytes that were read, and the first pull fetches all chunks that have another digest than the
/// sender's. `threads` read at once. kCancelled soon after `stop` returns true, also while a read
/// hangs. Any other error says that `from` is no model directory. No thread uses `buffer` when this
/// returns. REQUIRES: nothing was committed into `buffer` yet.
StatusOr<StartedFrom> StartFrom(const std::filesystem::path& from, Buffer& buffer, size_t threads,
                                const std::function<bool()>& stop);

}  // namespace deltawire::receiver
