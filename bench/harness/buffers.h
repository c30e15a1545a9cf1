// Memory that benchmarks work on, all of it touched: anonymous in huge pages, or files on tmpfs in
// a directory that is removed when this process ends, however it ends (even by SIGKILL). Each
// object owns what it made. Threads: one makes them; any may use the memory. Errors:
// kResourceExhausted.
#pragma once

#include <sys/types.h>

#include <cstdlib>
#include <filesystem>
#include <memory>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/shm/mapped_file.h"

namespace deltawire::bench {

/// Anonymous memory, in huge pages where the machine gives them, for buffers far larger than the
/// caches. Without huge pages a benchmark measures address translation as well.
class HugeBuffer {
 public:
  /// A buffer of `bytes` > 0 zeros that starts at a multiple of 2 MiB.
  static StatusOr<HugeBuffer> Create(uint64_t bytes);
  Bytes data() const { return {base_.get(), bytes_}; }
  MutableBytes data() { return {base_.get(), bytes_}; }
  /// The memory that it takes: its bytes, rounded up to whole huge pages.
  uint64_t resident() const;

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> base_;
  uint64_t bytes_ = 0;
};

/// REQUIRES of Create: no other thread runs yet, because it forks a janitor process that removes
/// the directory once this process has closed its end of a pipe.
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

/// A new file of `bytes` > 0 in tmpfs, all its pages taken, mapped read-write.
StatusOr<Mapping> MapNewFile(const std::filesystem::path& path, uint64_t bytes);

/// Writes numbers that follow from their places, and are of ordinary size in every element type;
/// FilledByPlace is true when all of them are there.
void FillByPlace(MutableBytes to);
bool FilledByPlace(Bytes data);

}  // namespace deltawire::bench
