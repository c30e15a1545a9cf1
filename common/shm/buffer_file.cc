#include "common/shm/buffer_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string_view>
#include <vector>

#include "common/base/log.h"
#include "common/layout/chunks.h"
#include "common/layout/safetensors.h"

namespace deltawire {
namespace {

/// Returns the bytes of the file that get memory, as ranges of whole pages: sorted, disjoint, not
/// adjacent.
std::vector<ByteRange> PagesOf(const BufferOptions& options, uint64_t data_offset, uint64_t bytes) {
  if (options.only.empty()) return {{0, bytes}};
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  std::vector<ByteRange> pages = {{0, std::min(bytes, (data_offset + page - 1) / page * page)}};
  for (const ByteRange& r : options.only) {
    const uint64_t first = (data_offset + r.first) / page * page;
    const uint64_t last = std::min(bytes, (data_offset + r.last + page - 1) / page * page);
    if (first <= pages.back().last) {
      pages.back().last = std::max(pages.back().last, last);
    } else {
      pages.push_back({first, last});
    }
  }
  return pages;
}

/// Populates on kernels before 5.14. It changes no byte, even while other threads write them.
void TouchPages(const Mapping& map, const ByteRange& range) {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  for (uint64_t at = range.first; at < range.last; at += page) {
    std::atomic_ref<uint8_t>(reinterpret_cast<uint8_t&>(map.base()[at]))
        .fetch_or(0, std::memory_order_relaxed);
  }
}

void AdviseHugePages(const Mapping& map, const BufferOptions& options) {
  // If the mount or the kernel has no huge pages this fails, and the buffer has small pages.
  if (options.huge_pages) ::madvise(map.base(), map.bytes(), MADV_HUGEPAGE);
}

/// Returns false, with errno set, when there is no memory for the pages. REQUIRES: `range` starts a
/// page.
bool Populate(const Mapping& map, const ByteRange& range) {
  int rc;
  do {
    rc = ::madvise(map.base() + range.first, range.last - range.first, MADV_POPULATE_WRITE);
  } while (rc != 0 && (errno == EINTR || errno == EAGAIN));
  return rc == 0;
}

/// Populates several ranges of pages, chunk by chunk on the pool if there is one. Returns 0 or an
/// errno, ECANCELED if `stop` returns true. REQUIRES: `pages` is in rising order.
int PopulateAll(const Mapping& map, const std::vector<ByteRange>& pages, const Layout& layout,
                uint64_t data_offset, const BufferOptions& options) {
  ThreadPool* const pool = options.pool;
  const auto stopped = [&] { return options.stop && options.stop(); };
  const auto table = ChunkTable::Create(layout);
  if (pool == nullptr || !table.ok() || table->size() == 0) {
    for (const ByteRange& p : pages) {
      if (stopped()) return ECANCELED;
      if (!Populate(map, p)) return errno;
    }
    return 0;
  }
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  // A page that two chunks share belongs to the later one. The first chunk also gets the pages
  // before it.
  const auto start = [&](size_t i) {
    if (i == 0) return uint64_t{0};
    if (i == table->size()) return map.bytes();
    return (data_offset + (*table)[static_cast<uint32_t>(i)].offset) / page * page;
  };
  std::atomic<int> failed = 0;  // errno of a failed thread
  pool->ParallelFor(table->size(), [&](size_t i) {
    if (failed == 0 && stopped()) failed = ECANCELED;
    const uint64_t begin = start(i), end = start(i + 1);
    auto p = std::lower_bound(pages.begin(), pages.end(), begin,
                              [](const ByteRange& r, uint64_t at) { return r.last <= at; });
    for (; failed == 0 && p != pages.end() && p->first < end; ++p) {
      const ByteRange both{std::max(begin, p->first), std::min(end, p->last)};
      if (both.first < both.last && !Populate(map, both)) failed = errno;
    }
  });
  return failed;
}

bool KernelPopulates(const Mapping& map) {
  return ::madvise(map.base(), 0, MADV_POPULATE_WRITE) == 0;
}

/// `want` is the header that a file of this layout must begin with.
Status CheckHeader(const Mapping& map, const Layout& layout, const std::string& want,
                   const std::filesystem::path& path) {
  const Bytes file{map.base(), map.bytes()};
  // Parsing 100,000s of tensors takes seconds, and only the error message needs it.
  if (file.size() >= want.size() && std::memcmp(file.data(), want.data(), want.size()) == 0) {
    return {};
  }
  const uint64_t data_offset = want.size();
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
  const std::vector<ByteRange> pages = PagesOf(options, header.size(), bytes);
  uint64_t needed = 0;
  for (const ByteRange& p : pages) needed += p.last - p.first;
  DW_ASSIGN_OR_RETURN(FileBuilder file, FileBuilder::Start(path, bytes, needed));
  BufferFile buffer;
  DW_ASSIGN_OR_RETURN(buffer.map_, Mapping::Map(file.fd(), bytes, true, path));
  AdviseHugePages(buffer.map_, options);
  // Populate before Allocate: on a mount with huge=advise only a fault takes huge pages, and
  // fallocate would take small ones.
  const bool kernel_populates = KernelPopulates(buffer.map_);
  if (options.populate && kernel_populates) {
    const int failed = PopulateAll(buffer.map_, pages, layout, header.size(), options);
    if (failed == ECANCELED) return absl::CancelledError("stopped before all its pages had memory");
    if (failed != 0) return file.NoSpace();
  }
  for (const ByteRange& p : pages) {
    DW_RETURN_IF_ERROR(file.Allocate(p.first, p.last));
    if (options.populate && !kernel_populates) TouchPages(buffer.map_, p);
  }
  std::memcpy(buffer.map_.base(), header.data(), header.size());
  DW_RETURN_IF_ERROR(file.Publish());
  buffer.fd_ = file.TakeFd();
  struct stat made;
  if (::fstat(buffer.fd(), &made) != 0) return ErrnoError(fmt::format("stat {}", path.native()));
  buffer.inode_ = made.st_ino;
  buffer.path_ = path;
  buffer.data_offset_ = header.size();
  buffer.data_bytes_ = layout.total_bytes();
  return buffer;
}

StatusOr<BufferFile> BufferFile::Open(const std::filesystem::path& path, const Layout& layout,
                                      const BufferOptions& options) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (fd.get() < 0) return ErrnoError(fmt::format("open {}", path.native()));
  struct stat file;
  if (::fstat(fd.get(), &file) != 0) return ErrnoError(fmt::format("stat {}", path.native()));
  const std::string expected = BuildSafetensorsHeader(layout);
  const uint64_t header_bytes = expected.size();
  const uint64_t bytes = header_bytes + layout.total_bytes();
  if (!S_ISREG(file.st_mode) || static_cast<uint64_t>(file.st_size) < sizeof(uint64_t)) {
    return Errorf(StatusCode::kFailedPrecondition, "{} is not a safetensors file; move it away",
                  path.native());
  }
  BufferFile buffer;
  DW_ASSIGN_OR_RETURN(buffer.map_,
                      Mapping::Map(fd.get(), static_cast<uint64_t>(file.st_size), true, path));
  Status header = CheckHeader(buffer.map_, layout, expected, path);
  if (!header.ok()) return Status(StatusCode::kFailedPrecondition, header.message());
  if (buffer.map_.bytes() != bytes) {
    return Errorf(StatusCode::kFailedPrecondition, "{} has {} bytes and its layout {}; remove it",
                  path.native(), buffer.map_.bytes(), bytes);
  }
  // A copied file may have holes, and a write into a hole fails when the filesystem is full.
  const bool holes = file.st_blocks * uint64_t{512} < bytes;
  AdviseHugePages(buffer.map_, options);
  const bool kernel_populates = KernelPopulates(buffer.map_);
  const std::vector<ByteRange> pages = PagesOf(options, header_bytes, bytes);
  for (const ByteRange& p : pages) {
    const auto size = static_cast<off_t>(p.last - p.first);
    const int err = holes ? ::posix_fallocate(fd.get(), static_cast<off_t>(p.first), size) : 0;
    if (err != 0) return ErrnoError(fmt::format("allocate {}", path.native()), err);
    if (options.populate && !kernel_populates) TouchPages(buffer.map_, p);
  }
  const int failed = options.populate && kernel_populates
                         ? PopulateAll(buffer.map_, pages, layout, header_bytes, options)
                         : 0;
  if (failed != 0) {
    return ErrnoError(fmt::format("fault in the {} bytes of {}", bytes, path.native()), failed);
  }
  buffer.fd_ = std::move(fd);
  buffer.inode_ = file.st_ino;
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

Status BufferFile::Relink(const std::filesystem::path& path) {
  ::unlink(path.c_str());
  const std::string open = fmt::format("/proc/self/fd/{}", fd());
  if (::linkat(AT_FDCWD, open.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) != 0) {
    return ErrnoError(fmt::format("link {}", path.native()));
  }
  path_ = path;
  return {};
}

Status BufferFile::Restore(const Layout& layout) {
  if (::ftruncate(fd(), static_cast<off_t>(map_.bytes())) != 0) {
    return ErrnoError(fmt::format("size {}", path_.native()));
  }
  const int err = ::posix_fallocate(fd(), 0, static_cast<off_t>(map_.bytes()));
  if (err != 0) return ErrnoError(fmt::format("allocate {}", path_.native()), err);
  const std::string header = BuildSafetensorsHeader(layout);
  if (std::memcmp(map_.base(), header.data(), header.size()) != 0) {
    std::memcpy(map_.base(), header.data(), header.size());
  }
  return {};
}

Status BufferFile::Exchange(BufferFile& other) {
  const auto failed = [&](const char* what) {
    return ErrnoError(fmt::format("{} {} and {}", what, path_.native(), other.path_.native()));
  };
  if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, other.path_.c_str(), RENAME_EXCHANGE) == 0) {
    std::swap(path_, other.path_);
    return {};
  }
  if (errno != EINVAL && errno != ENOSYS) return failed("exchange");
  // The spare name keeps `other` alive when this file is renamed over its name.
  const std::filesystem::path mine = path_;
  constexpr std::string_view kSwap = ".swap";
  const bool swapped = mine.native().ends_with(kSwap);  // left by an earlier exchange
  const std::filesystem::path spare =
      swapped ? mine.native().substr(0, mine.native().size() - kSwap.size())
              : mine.native() + std::string(kSwap);
  ::unlink(spare.c_str());
  if (::link(other.path_.c_str(), spare.c_str()) != 0) return failed("link");
  if (::rename(mine.c_str(), other.path_.c_str()) != 0) return failed("rename");
  path_ = other.path_;
  other.path_ = spare;
  // The two are exchanged from here on, whatever else fails: the other file keeps the spare name.
  if (const Status named = other.Rename(mine); !named.ok()) LogWarn("{}", MessageOf(named));
  return {};
}

}  // namespace deltawire
