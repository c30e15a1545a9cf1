// A file under construction and a shared mapping of one: what the buffer and state files are
// made of. FileBuilder writes under a hidden name and removes it again unless Publish renamed it
// into place, so `path` is never seen half made. Not thread-safe.
// Errors: no space is kResourceExhausted with bytes needed and free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace deltawire {

/// Bytes that can still be taken in `dir`: the filesystem's, and where that lives in memory no more
/// than the machine has available.
uint64_t RoomFor(const std::filesystem::path& dir);

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
  /// A new file of `bytes` zeroes (sparse until Allocate), to become `path`. Refuses at once what
  /// the filesystem, or for a filesystem in memory the machine, has no room for. `needed`: of
  /// `bytes` those that will be allocated, when the rest stays a hole.
  static StatusOr<FileBuilder> Start(const std::filesystem::path& path, uint64_t bytes,
                                     std::optional<uint64_t> needed = std::nullopt);
  FileBuilder(FileBuilder&&) noexcept;
  FileBuilder& operator=(FileBuilder&&) = delete;
  ~FileBuilder();

  int fd() const { return fd_.get(); }
  /// For a caller that keeps the file open: the one descriptor, once it is published.
  UniqueFd TakeFd() { return std::move(fd_); }
  /// Takes every block, so that no later write through a mapping can fail with SIGBUS.
  Status Allocate() { return Allocate(0, bytes_); }
  /// The same for bytes first <= i < last alone.
  Status Allocate(uint64_t first, uint64_t last);
  /// The error to return when the space ran out after all.
  Status NoSpace() const;
  /// Renames into place.
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
