// The base of buffer and state files: a file under construction, and a shared mapping of a file. A
// FileBuilder builds under a hidden name, which Publish renames into place and the destructor
// otherwise removes, so `path` is never seen half made. Not thread-safe. Too little space is
// kResourceExhausted with bytes needed and free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace deltawire {

/// Returns the bytes that can still be allocated in `dir`: the filesystem's free space and, if it
/// lives in memory, no more than the machine's available memory.
uint64_t RoomFor(const std::filesystem::path& dir);
/// Logs a warning if `dir` is on a disk, since every version is then written to that disk.
void WarnIfOnDisk(const std::filesystem::path& dir);

/// One MAP_SHARED mapping of a whole file; `bytes` > 0.
class Mapping {
 public:
  Mapping() = default;
  static StatusOr<Mapping> Map(int fd, uint64_t bytes, bool writable,
                               const std::filesystem::path& path);
  Mapping(Mapping&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();

  std::byte* base() const { return base_; }
  uint64_t bytes() const { return bytes_; }

 private:
  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
};

class FileBuilder {
 public:
  /// Starts a file of `bytes` zeros (sparse until Allocate) that becomes `path`. `needed` is the
  /// number of bytes that will be allocated, if the rest stays a hole. Returns kResourceExhausted
  /// at once when the filesystem, or the machine's memory below it, has no room for that many.
  static StatusOr<FileBuilder> Start(const std::filesystem::path& path, uint64_t bytes,
                                     std::optional<uint64_t> needed = std::nullopt);
  FileBuilder(FileBuilder&&) noexcept;
  FileBuilder& operator=(FileBuilder&&) = delete;
  ~FileBuilder();

  int fd() const { return fd_.get(); }
  /// Hands the file's only descriptor to a caller that keeps the file open, after Publish.
  UniqueFd TakeFd() { return std::move(fd_); }
  /// Allocates every block, so that no later write through a mapping can fail with SIGBUS.
  Status Allocate() { return Allocate(0, bytes_); }
  /// Allocates the bytes first <= i < last only.
  Status Allocate(uint64_t first, uint64_t last);
  /// Returns the error for space that runs out although Start found enough.
  Status NoSpace() const;
  Status Publish();

 private:
  FileBuilder() = default;
  UniqueFd fd_;
  std::filesystem::path path_;
  std::filesystem::path hidden_;  // empty once published
  uint64_t bytes_ = 0;
  uint64_t needed_ = 0;
};

}  // namespace deltawire
