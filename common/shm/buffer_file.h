// A safetensors file in tmpfs that is one model buffer: mapped shared, allocated up front.
// Owns its mapping and the only descriptor that the process has of the file (a lease needs it to be
// the only one); never removes the file. Threads: the mapping is plain memory, and callers agree on
// who writes what; renaming is for one thread. Errors: too little space is kResourceExhausted at
// Create, with bytes needed and free, and never a SIGBUS.
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
  bool populate = true;    ///< fault all pages in at once, so that later writes need not
  /// The threads that fault the pages in; null: the calling thread. With a pool, a chunk's pages
  /// lie on the NUMA node that ParallelFor over the chunks assigns the chunk to.
  ThreadPool* pool = nullptr;
  /// If not empty, only these bytes of the data section (and the header) get memory. The rest of
  /// the file stays a hole, which must not be written, nor read through a mapping.
  std::vector<ByteRange> only = {};
  /// Asked from any of the threads between chunks, while Create faults pages in. True: it gives up
  /// (kCancelled).
  std::function<bool()> stop = nullptr;
};

class BufferFile {
 public:
  /// Makes `path`, replacing an existing file, with the layout's header and zeroed data.
  static StatusOr<BufferFile> Create(const std::filesystem::path& path, const Layout& layout,
                                     const BufferOptions& options);
  /// Maps an existing file for reading and writing. Its header must describe exactly `layout`
  /// (kFailedPrecondition when not).
  static StatusOr<BufferFile> Open(const std::filesystem::path& path, const Layout& layout,
                                   const BufferOptions& options);

  MutableBytes data() { return {map_.base() + data_offset_, data_bytes_}; }
  Bytes data() const { return {map_.base() + data_offset_, data_bytes_}; }
  /// Offset of the data section in the file; a tensor lies at this plus its offset in the layout.
  uint64_t data_offset() const { return data_offset_; }
  const std::filesystem::path& path() const { return path_; }

  /// Renames within the directory (atomic); the mapping survives.
  Status Rename(const std::filesystem::path& to);
  /// Swaps the names of this file and `other`, in one step where the filesystem can. Elsewhere this
  /// file takes `other`'s name first, and for a moment its own name leads to no file. After an
  /// error nothing was exchanged.
  Status Exchange(BufferFile& other);

  /// Gives the file the name `path`, after somebody else removed or changed its name. kNotFound
  /// when the file has no name left at all.
  Status Relink(const std::filesystem::path& path);
  /// Restores size, blocks and header, after somebody else wrote to the file.
  Status Restore(const Layout& layout);

  int fd() const { return fd_.get(); }
  uint64_t inode() const { return inode_; }
  /// The size of the whole file, header included.
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
