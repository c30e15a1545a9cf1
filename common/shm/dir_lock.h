// Ensures that a model's directory has one owner at a time: a flock on its `.deltawire.lock`, which
// holds the owner's pid. Held until destruction or process end (the kernel releases it, also on
// SIGKILL). Also sets who may read the directory. Threads: any, one at a time. Errors:
// kAlreadyExists names the owner's pid and the directory, kPermissionDenied the directory and both
// users.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>

#include "common/base/status.h"

namespace deltawire {

/// The mode for new files in `dir`: 0600, or 0640 where Acquire was given a group.
mode_t FileModeIn(const std::filesystem::path& dir);

class DirLock {
 public:
  static constexpr const char* kFileName = ".deltawire.lock";
  /// Creates `dir` if needed and takes its lock without waiting. The directory's mode is 0700, or
  /// 02750 with a `group`, whose members may then read it; a directory that was open to others
  /// before, and our files in it, are closed to them. kPermissionDenied when the directory or its
  /// parent belongs neither to this process's user nor to root, or when others may write into the
  /// directory and that cannot be changed: they could put other files in place of ours.
  static StatusOr<DirLock> Acquire(const std::filesystem::path& dir, const std::string& group = "");
  DirLock(DirLock&&) noexcept;
  DirLock& operator=(DirLock&&) noexcept;
  ~DirLock();
  /// False once the lock's file has left its path: somebody removed or moved the directory. Another
  /// process may then make it, and own it.
  bool IsInPlace() const;

 private:
  DirLock() = default;
  std::filesystem::path file_;
  int fd_ = -1;
};

}  // namespace deltawire
