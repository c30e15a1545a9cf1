// Ensures that a model's directory has one owner at a time: a flock on its `.deltawire.lock`, which
// holds the owner's pid. Held until destruction or process end (the kernel releases it, also on
// SIGKILL). Also sets who may read the directory. Threads: any, one at a time. Errors:
// kAlreadyExists names the owner's pid and the directory, kPermissionDenied the directory and both
// users, kFailedPrecondition what makes the directory another's.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace deltawire {

/// The mode for new files in `dir`: 0600, or 0640 where Acquire was given a group.
mode_t FileModeIn(const std::filesystem::path& dir);

class DirLock {
 public:
  static constexpr const char* kFileName = ".deltawire.lock";
  /// Creates `dir` if needed and takes its lock without waiting. The directory's mode is 0700, or
  /// 02750 with a `group`, whose members may then read it. Refuses, and leaves as it is: a link, a
  /// sticky directory, another user's or one in another user's; and unless it has a `.deltawire.*`
  /// of this user, one with other files or that others may write.
  static StatusOr<DirLock> Acquire(const std::filesystem::path& dir, const std::string& group = "");
  DirLock(DirLock&&) noexcept = default;
  DirLock& operator=(DirLock&&) noexcept = default;
  ~DirLock();
  /// False once the directory or the lock's file has left its path, also where a link leads there
  /// now. Another process may then make the directory, and own it.
  bool IsInPlace() const;

 private:
  DirLock() = default;
  Status TakeLock();
  std::filesystem::path dir_;
  UniqueFd dir_fd_, fd_;  // the directory and the lock's file
};

}  // namespace deltawire
