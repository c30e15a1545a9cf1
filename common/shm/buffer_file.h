// A safetensors file in tmpfs that is one model buffer, mapped shared and allocated up front. It
// owns its mapping and the process's only descriptor of the file, as a lease needs; it never
// removes the file. The mapping is plain memory, so callers agree on who writes what; renames are
// for one thread. Too little space is kResourceExhausted at Create, with bytes needed and free,
// never a SIGBUS.
#pragma once

#include <filesystem>
#include <functional>
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
  bool populate = true;    ///< fault all pages in at once, so that later writes do not fault
  /// The threads that fault the pages in; null: the calling thread. With a pool, a chunk's pages
  /// lie on the NUMA node to which ParallelFor over the chunks assigns the chunk.
  ThreadPool* pool = nullptr;
  /// If not empty, only these bytes of the data section, and the header, get memory. The rest of
  /// the file stays a hole: it must not be written, nor read through a mapping.
  std::vector<ByteRange> only = {};
  /// Called by any of the threads between chunks while Create faults pages in. True makes Create
  /// return kCancelled.
  std::function<bool()> stop = nullptr;
};

class BufferFile {
 public:
  /// Makes `path`, replacing an existing file, with the layout's header and zeroed data.
  static StatusOr<BufferFile> Create(const std::filesystem::path& path, const Layout& layout,
                                     const BufferOptions& options);
  /// Maps an existing file for reading and writing. Returns kFailedPrecondition unless its header
  /// describes exactly `layout`.
  static StatusOr<BufferFile> Open(const std::filesystem::path& path, const Layout& layout,
                                   const BufferOptions& options);

  MutableBytes data() { return {map_.base() + data_offset_, data_bytes_}; }
  Bytes data() const { return {map_.base() + data_offset_, data_bytes_}; }
  /// The offset of the data section in the file. A tensor lies at this plus its offset in the
  /// layout.
  uint64_t data_offset() const { return data_offset_; }
  const std::filesystem::path& path() const { return path_; }

  /// Renames within the directory (atomic); the mapping survives.
  Status Rename(const std::filesystem::path& to);
  /// Swaps the names of this file and `other`, in one step if the filesystem can. Otherwise this
  /// file takes `other`'s name first, and for a moment its own name leads to no file. After an
  /// error nothing is exchanged.
  Status Exchange(BufferFile& other);

  /// Names the file `path` again after another process removed or changed its name. Returns
  /// kNotFound when the file has no name left.
  Status Relink(const std::filesystem::path& path);
  /// Restores size, blocks and header after another process wrote to the file.
  Status Restore(const Layout& layout);

  int fd() const { return fd_.get(); }
  uint64_t inode() const { return inode_; }
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
