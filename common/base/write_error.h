// The error of a failed file write. If the filesystem is full it says what to do, because `df` of
// the machine's disk does not show a tmpfs.
#pragma once

#include <filesystem>

#include "common/base/status.h"

namespace deltawire {

/// `err` is the failed call's errno.
inline Status WriteError(const std::filesystem::path& path, int err = errno) {
  const Status status = ErrnoError("write " + path.native(), err);
  if (err != ENOSPC && err != EDQUOT) return status;
  return Errorf(status.code(),
                "{}; remove files there, or give a tmpfs more room (mount -o remount,size=...)",
                MessageOf(status));
}

}  // namespace deltawire
