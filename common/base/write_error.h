// The error of a file that could not be written: with what to do where its filesystem is full,
// which for a tmpfs is not what `df` on the machine's disk shows. Threads: any. Cost: none on
// success.
#pragma once

#include <filesystem>

#include "common/base/status.h"

namespace deltawire {

/// `err` is what the failed call left in errno.
inline Status WriteError(const std::filesystem::path& path, int err = errno) {
  const Status status = ErrnoError("write " + path.native(), err);
  if (err != ENOSPC && err != EDQUOT) return status;
  return Errorf(status.code(),
                "{}; remove files there, or give a tmpfs more room (mount -o remount,size=...)",
                MessageOf(status));
}

}  // namespace deltawire
