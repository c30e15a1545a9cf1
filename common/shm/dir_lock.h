// One owner at a time for a model's directory: flock on its `.deltawire.lock`, which holds the pid.
// Held until destruction or process end (the kernel drops it, also on SIGKILL).
// Errors: kAlreadyExists names the owner's pid and the directory.
#pragma once

#include <filesystem>

#include "common/base/status.h"

namespace deltawire {

class DirLock {
 public:
  /// Creates `dir` (mode 0755) if needed and takes its lock without waiting.
  static StatusOr<DirLock> Acquire(const std::filesystem::path& dir);
  DirLock(DirLock&&) noexcept;
  DirLock& operator=(DirLock&&) noexcept;
  ~DirLock();

 private:
  DirLock() = default;
  int fd_ = -1;
};

}  // namespace deltawire
