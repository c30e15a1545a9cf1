// A lock that gives a model's directory one owner at a time: a flock on its `.deltawire.lock`,
// which holds the owner's pid. The kernel releases it at process end, also on SIGKILL. It also sets
// who may read the directory. One thread at a time. kAlreadyExists names the owner's pid and the
// directory, kPermissionDenied the directory and both users, kFailedPrecondition why the directory
// is not ours.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace deltawire {

/// Returns the mode for new files in `dir`: 0600, or 0640 where Acquire was given a group.
mode_t FileModeIn(const std::filesystem::path& dir);

class DirLock {
 public:
  static constexpr const char* kFileName = ".deltawire.lock";
  /// Creates `dir` if needed and locks it without waiting. The directory's mode is 0700, or 02750
  /// with a `group`, whose members may then read it. Rejects without a change: a link, a sticky
  /// directory, another user's directory or one in another user's. Unless a `.deltawire.*` of this
  /// user is in it, it also rejects a directory with other files or that others may write.
  static StatusOr<DirLock> Acquire(const std::filesystem::path& dir, const std::string& group = "");
  DirLock(DirLock&&) noexcept = default;
  DirLock& operator=(DirLock&&) noexcept = default;
  ~DirLock();
  /// Returns false once the directory or the lock's file has left its path, even if a link at that
  /// path leads to it. Another process may then make the directory, and own it.
  bool IsInPlace() const;

 private:
  DirLock() = default;
  Status TakeLock();
  std::filesystem::path dir_;
  UniqueFd dir_fd_, fd_;  // the directory and the lock's file
};

}  // namespace deltawire
