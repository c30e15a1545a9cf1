// The first bytes of a receiver's buffer, out of a model directory that its machine has anyway,
// such as the checkpoint that training begins with. The sender is asked for what differs.
// Threads: the Replica's driving thread calls; threads of its own read, and one that hangs in the
// kernel (a server of files that is gone) is left behind. Cost: a read, a copy and a digest of each
// byte. Errors name the directory; the buffer then has the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>

#include "common/base/status.h"
#include "receiver/buffer/buffer.h"

namespace deltawire::receiver {

struct StartedFrom {
  uint64_t bytes = 0;  ///< that were brought
  size_t tensors = 0;  ///< that were brought
  size_t others = 0;  ///< of the buffer's that the directory lacks, or has in another shape or type
  Status first_error;  ///< why a tensor of the directory was not brought
};

/// Brings each tensor of `buffer` that the model directory `from` has with the same name, type and
/// shape. Whatever the files hold, and even if they change meanwhile, nothing wrong comes of it:
/// each chunk gets the digest of the bytes that arrived, and the first pull fetches all chunks that
/// have another digest than the sender's. `threads` read at once. kCancelled soon after `stop`
/// returns true, whatever the reads do; other errors: the directory is no model directory. No
/// thread uses `buffer` when this returns. REQUIRES: nothing was committed into `buffer` yet.
StatusOr<StartedFrom> StartFrom(const std::filesystem::path& from, Buffer& buffer, size_t threads,
                                const std::function<bool()>& stop);

}  // namespace deltawire::receiver
