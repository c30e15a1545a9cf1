// The memory of benchmarks, all of it touched: anonymous in huge pages, or files on tmpfs in a
// directory that is removed when this process ends, even by SIGKILL. One thread makes the objects;
// any may use the memory. Too little memory is kResourceExhausted.
#pragma once

#include <sys/types.h>

#include <cstdlib>
#include <filesystem>
#include <memory>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/shm/mapped_file.h"

namespace deltawire::bench {

/// Anonymous memory for buffers far larger than the caches, in huge pages if the machine has them.
/// Without huge pages a benchmark measures address translation too.
class HugeBuffer {
 public:
  /// Returns a buffer of `bytes` > 0 zeros that starts at a multiple of 2 MiB.
  static StatusOr<HugeBuffer> Create(uint64_t bytes);
  Bytes data() const { return {base_.get(), bytes_}; }
  MutableBytes data() { return {base_.get(), bytes_}; }
  /// Returns its resident bytes, rounded up to whole huge pages.
  uint64_t resident() const;

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> base_;
  uint64_t bytes_ = 0;
};

/// A directory that a janitor process removes once this process has closed its end of a pipe.
/// REQUIRES of Create: no other thread runs yet, because it forks.
class ScratchDir {
 public:
  /// Creates it below /dev/shm, or below the temporary directory if that is missing.
  static StatusOr<std::unique_ptr<ScratchDir>> Create();
  ~ScratchDir();
  const std::filesystem::path& path() const { return path_; }

 private:
  ScratchDir() = default;
  std::filesystem::path path_;
  UniqueFd alive_;
  pid_t janitor_ = -1;
};

/// Maps a new file of `bytes` > 0 in tmpfs read-write, with all its pages allocated.
StatusOr<Mapping> MapNewFile(const std::filesystem::path& path, uint64_t bytes);

/// Writes numbers that follow from their places, and have ordinary magnitude in every element type.
/// FilledByPlace returns true when all of them are there.
void FillByPlace(MutableBytes to);
bool FilledByPlace(Bytes data);

}  // namespace deltawire::bench
