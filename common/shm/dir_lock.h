// One owner at a time for a model's directory: flock on its `.deltawire.lock`, which holds the pid.
// Held until destruction or process end (the kernel drops it, also on SIGKILL).
// Also says who may read what is in it. Errors: kAlreadyExists names the owner's pid and the
// directory, kPermissionDenied the directory and both users.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>

#include "common/base/status.h"

namespace deltawire {

/// What a file that is made in `dir` is to have: 0600, or 0640 where Acquire was given a group.
mode_t FileModeIn(const std::filesystem::path& dir);

class DirLock {
 public:
  /// Creates `dir` if needed (mode 0700; with a `group`, which may read then, 02750) and takes its
  /// lock without waiting. kPermissionDenied when the directory, or the one it is in, is neither
  /// this process's user's nor root's: its owner could put other files in place of ours.
  static StatusOr<DirLock> Acquire(const std::filesystem::path& dir, const std::string& group = "");
  DirLock(DirLock&&) noexcept;
  DirLock& operator=(DirLock&&) noexcept;
  ~DirLock();

 private:
  DirLock() = default;
  int fd_ = -1;
};

}  // namespace deltawire
