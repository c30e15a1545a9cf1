// A directory on tmpfs that is gone when this process is, however it ends (even by SIGKILL).
// Owner: the suite's main. REQUIRES of Create: no other thread runs yet, because it forks a
// janitor process that removes the directory once this process has closed its end of a pipe.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <memory>

#include "common/base/status.h"
#include "common/shm/mapped_file.h"

namespace deltawire::bench {

class ScratchDir {
 public:
  /// Below /dev/shm, or the temporary directory where there is none.
  static StatusOr<std::unique_ptr<ScratchDir>> Create();
  ~ScratchDir();
  const std::filesystem::path& path() const { return path_; }

 private:
  ScratchDir() = default;
  std::filesystem::path path_;
  UniqueFd alive_;
  pid_t janitor_ = -1;
};

/// A new file of `bytes` > 0 in tmpfs, all its pages taken, mapped read-write and touched.
StatusOr<Mapping> MapNewFile(const std::filesystem::path& path, uint64_t bytes);

}  // namespace deltawire::bench
