#include "common/shm/buffer_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "common/layout/chunks.h"
#include "common/layout/safetensors.h"

namespace deltawire {
namespace {

/// For kernels before 5.14. Leaves the bytes as they are, whoever else writes them.
void TouchPages(const Mapping& map) {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  for (uint64_t at = 0; at < map.bytes(); at += page) {
    std::atomic_ref<uint8_t>(reinterpret_cast<uint8_t&>(map.base()[at]))
        .fetch_or(0, std::memory_order_relaxed);
  }
}

void AdviseHugePages(const Mapping& map, const BufferOptions& options) {
  // Refused where the mount or the kernel has none; then the buffer has small pages.
  if (options.huge_pages) ::madvise(map.base(), map.bytes(), MADV_HUGEPAGE);
}

/// False when the pages could not be had. `at` lies on a page's start.
bool Populate(const Mapping& map, uint64_t at, uint64_t bytes) {
  int rc;
  do {
    rc = ::madvise(map.base() + at, bytes, MADV_POPULATE_WRITE);
  } while (rc != 0 && (errno == EINTR || errno == EAGAIN));
  return rc == 0;
}

/// The same for all pages: chunk by chunk on the pool, if there is one.
bool PopulateAll(const Mapping& map, const Layout& layout, uint64_t data_offset, ThreadPool* pool) {
  const auto table = ChunkTable::Create(layout);
  if (pool == nullptr || !table.ok() || table->size() == 0) return Populate(map, 0, map.bytes());
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  // A page that two chunks share is the latter's; those before the first chunk are the first's.
  const auto start = [&](size_t i) {
    if (i == 0) return uint64_t{0};
    if (i == table->size()) return map.bytes();
    return (data_offset + (*table)[static_cast<uint32_t>(i)].offset) / page * page;
  };
  std::atomic<bool> all = true;
  pool->ParallelFor(table->size(), [&](size_t i) {
    if (all && start(i) < start(i + 1) && !Populate(map, start(i), start(i + 1) - start(i)))
      all = false;
  });
  return all;
}

bool KernelPopulates(const Mapping& map) {
  return ::madvise(map.base(), 0, MADV_POPULATE_WRITE) == 0;
}

Status CheckHeader(const Mapping& map, const Layout& layout, uint64_t data_offset,
                   const std::filesystem::path& path) {
  const Bytes file{map.base(), map.bytes()};
  DW_ASSIGN_OR_RETURN(const SafetensorsHeader header,
                      ParseSafetensorsHeader(file, file.size(), path.native()));
  std::vector<TensorMeta> tensors;
  tensors.reserve(header.tensors.size());
  for (const StoredTensor& stored : header.tensors) tensors.push_back(stored.meta);
  DW_ASSIGN_OR_RETURN(const Layout got, Layout::Create(std::move(tensors)));
  const std::string difference = DescribeDifference(layout, got);
  if (!difference.empty()) {
    return Errorf(StatusCode::kFailedPrecondition, "{} holds another layout: {}", path.native(),
                  difference);
  }
  if (header.data_offset != data_offset) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "{} was not written by deltawire: its data starts at byte {} instead of {}; "
                  "move it away",
                  path.native(), header.data_offset, data_offset);
  }
  return {};
}

}  // namespace

StatusOr<BufferFile> BufferFile::Create(const std::filesystem::path& path, const Layout& layout,
                                        const BufferOptions& options) {
  const std::string header = BuildSafetensorsHeader(layout);
  const uint64_t bytes = header.size() + layout.total_bytes();
  DW_ASSIGN_OR_RETURN(FileBuilder file, FileBuilder::Start(path, bytes));
  BufferFile buffer;
  DW_ASSIGN_OR_RETURN(buffer.map_, Mapping::Map(file.fd(), bytes, true, path));
  AdviseHugePages(buffer.map_, options);
  // Populate first: on a mount with huge=advise only a fault takes huge pages, fallocate does not.
  const bool kernel_populates = KernelPopulates(buffer.map_);
  if (options.populate && kernel_populates &&
      !PopulateAll(buffer.map_, layout, header.size(), options.pool)) {
    return file.NoSpace();
  }
  DW_RETURN_IF_ERROR(file.Allocate());
  if (options.populate && !kernel_populates) TouchPages(buffer.map_);
  std::memcpy(buffer.map_.base(), header.data(), header.size());
  DW_RETURN_IF_ERROR(file.Publish());
  buffer.path_ = path;
  buffer.data_offset_ = header.size();
  buffer.data_bytes_ = layout.total_bytes();
  return buffer;
}

StatusOr<BufferFile> BufferFile::Open(const std::filesystem::path& path, const Layout& layout,
                                      const BufferOptions& options) {
  const ScopedFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (fd.get() < 0) return ErrnoError(fmt::format("open {}", path.native()));
  struct stat file;
  if (::fstat(fd.get(), &file) != 0) return ErrnoError(fmt::format("stat {}", path.native()));
  const uint64_t header_bytes = BuildSafetensorsHeader(layout).size();
  const uint64_t bytes = header_bytes + layout.total_bytes();
  if (!S_ISREG(file.st_mode) || static_cast<uint64_t>(file.st_size) < sizeof(uint64_t)) {
    return Errorf(StatusCode::kFailedPrecondition, "{} is not a safetensors file; move it away",
                  path.native());
  }
  BufferFile buffer;
  DW_ASSIGN_OR_RETURN(buffer.map_,
                      Mapping::Map(fd.get(), static_cast<uint64_t>(file.st_size), true, path));
  Status header = CheckHeader(buffer.map_, layout, header_bytes, path);
  if (!header.ok()) return Status(StatusCode::kFailedPrecondition, header.message());
  if (buffer.map_.bytes() != bytes) {
    return Errorf(StatusCode::kFailedPrecondition, "{} has {} bytes and its layout {}; remove it",
                  path.native(), buffer.map_.bytes(), bytes);
  }
  // A copy may have left holes, and writing into one can fail when the filesystem is full.
  if (file.st_blocks * uint64_t{512} < bytes) {
    const int err = ::posix_fallocate(fd.get(), 0, file.st_size);
    if (err != 0) return ErrnoError(fmt::format("allocate {}", path.native()), err);
  }
  AdviseHugePages(buffer.map_, options);
  if (options.populate) {
    if (!KernelPopulates(buffer.map_)) {
      TouchPages(buffer.map_);
    } else if (!PopulateAll(buffer.map_, layout, header_bytes, options.pool)) {
      return ErrnoError(fmt::format("fault in the {} bytes of {}", bytes, path.native()));
    }
  }
  buffer.path_ = path;
  buffer.data_offset_ = header_bytes;
  buffer.data_bytes_ = layout.total_bytes();
  return buffer;
}

Status BufferFile::Rename(const std::filesystem::path& to) {
  if (to.parent_path() != path_.parent_path()) {
    return Errorf(StatusCode::kInvalidArgument, "cannot rename {} to {}: not the same directory",
                  path_.native(), to.native());
  }
  if (::rename(path_.c_str(), to.c_str()) != 0) {
    return ErrnoError(fmt::format("rename {} to {}", path_.native(), to.native()));
  }
  path_ = to;
  return {};
}

}  // namespace deltawire
