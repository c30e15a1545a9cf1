// Checks of a buffer between updates: its files' names and bytes, which other processes may have
// changed. Errors name the directory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "receiver/buffer/buffer.h"

namespace deltawire::receiver {

struct BufferHealth {
  std::vector<std::string> put_back;     ///< names of files that were gone or changed, now restored
  std::vector<uint32_t> corrupt_chunks;  ///< unknown now, to be fetched
};

/// Puts back a name or a side file that another process removed or changed, checks the bytes of a
/// weight file that another process wrote to, and does what failed at the end of a commit. Cheap (a
/// few stats) when nothing changed; to be called about every second while no pull runs.
StatusOr<BufferHealth> CheckFiles(Buffer& buffer);
/// Whether chunk i has its digest, in the named file and in the base of the next update. From any
/// thread.
bool IsIntact(const Buffer& buffer, uint32_t i);

}  // namespace deltawire::receiver
