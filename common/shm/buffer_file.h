// A safetensors file in tmpfs that is one model buffer: mapped shared, allocated up front.
// Owns its mapping and the one descriptor that it is mapped through (a lease needs there to be no
// second one); never removes the file.
// Threads: the mapping is plain memory; callers agree on who writes what. Names are one caller's.
// Errors: no space is kResourceExhausted at Create, with bytes needed and free, never a SIGBUS.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/layout/coverage.h"
#include "common/layout/layout.h"
#include "common/shm/mapped_file.h"

namespace deltawire {

struct BufferOptions {
  bool huge_pages = true;  ///< madvise(MADV_HUGEPAGE) where the mount offers them
  bool populate = true;    ///< fault all pages in at once, so that no later write pays for it
  /// Whose threads fault in; null: the caller. A page then lies on the NUMA node whose threads a
  /// ParallelFor over the chunks hands its chunk to.
  ThreadPool* pool = nullptr;
  /// Not empty: only these bytes of the data section (and the header) get memory; the rest of the
  /// file stays a hole that must be neither written nor, through a mapping, read.
  std::vector<ByteRange> only = {};
};

class BufferFile {
 public:
  /// Makes `path` (replacing what is there) with the layout's header and zeroed data.
  static StatusOr<BufferFile> Create(const std::filesystem::path& path, const Layout& layout,
                                     const BufferOptions& options);
  /// Maps an existing file for reading and writing. Its header must describe exactly `layout`
  /// (kFailedPrecondition when not).
  static StatusOr<BufferFile> Open(const std::filesystem::path& path, const Layout& layout,
                                   const BufferOptions& options);

  MutableBytes data() { return {map_.base() + data_offset_, data_bytes_}; }
  Bytes data() const { return {map_.base() + data_offset_, data_bytes_}; }
  /// Offset of the data section in the file: what a trainer adds to a tensor's offset.
  uint64_t data_offset() const { return data_offset_; }
  const std::filesystem::path& path() const { return path_; }

  /// Renames within the directory (atomic); the mapping survives.
  Status Rename(const std::filesystem::path& to);
  /// This file gets `other`'s name and that one this file's, in one step where the filesystem can
  /// (else `other` has its new name a moment before it loses the old one).
  Status Exchange(BufferFile& other);

  /// A name for a file that has been given another one behind our back. kNotFound when it has none.
  Status Relink(const std::filesystem::path& path);
  /// Size, blocks and header as they were made: after somebody else wrote to the file.
  Status Restore(const Layout& layout);

  int fd() const { return fd_.get(); }
  uint64_t inode() const { return inode_; }
  /// Of the whole file, header included.
  uint64_t file_bytes() const { return map_.bytes(); }

 private:
  BufferFile() = default;
  std::filesystem::path path_;
  UniqueFd fd_;
  Mapping map_;
  uint64_t inode_ = 0;
  uint64_t data_offset_ = 0;
  uint64_t data_bytes_ = 0;
};

}  // namespace deltawire
