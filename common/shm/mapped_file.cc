#include "common/shm/mapped_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>

#include "common/base/human.h"
#include "common/base/log.h"
#include "common/base/machine.h"
#include "common/shm/dir_lock.h"

namespace deltawire {
namespace {

bool LivesInMemory(int fd) {
  struct statfs fs;
  if (::fstatfs(fd, &fs) != 0) return false;
  return fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC;
}

uint64_t FreeBytes(int fd) {
  struct statvfs fs;
  if (::fstatvfs(fd, &fs) != 0) return std::numeric_limits<uint64_t>::max();
  return static_cast<uint64_t>(fs.f_bavail) * fs.f_frsize;
}

/// Returns a hidden name in the file's own directory, so that the rename is atomic. It is always
/// the same, so that the next attempt finds and removes a crash's leftover.
std::filesystem::path HiddenName(const std::filesystem::path& path) {
  std::string name = path.filename().native();
  if (!name.starts_with('.')) name.insert(name.begin(), '.');
  return path.parent_path() / (name + ".new");
}

}  // namespace

uint64_t RoomFor(const std::filesystem::path& dir) {
  const UniqueFd fd(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) return 0;
  const uint64_t free = FreeBytes(fd.get());
  return LivesInMemory(fd.get()) ? std::min(free, AvailableMemory().value_or(free)) : free;
}

void WarnIfOnDisk(const std::filesystem::path& dir) {
  const UniqueFd fd(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0 || LivesInMemory(fd.get())) return;
  LogWarn(
      "{} is on a disk, so each version is written to that disk, and publishing, pulling and "
      "loading wait for it; name a directory on a tmpfs, such as one below /dev/shm",
      dir.native());
}

StatusOr<Mapping> Mapping::Map(int fd, uint64_t bytes, bool writable,
                               const std::filesystem::path& path) {
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* base = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return ErrnoError(fmt::format("map {}", path.native()));
  Mapping mapping;
  mapping.base_ = static_cast<std::byte*>(base);
  mapping.bytes_ = bytes;
  return mapping;
}

Mapping::~Mapping() {
  if (base_ != nullptr) ::munmap(base_, bytes_);
}

StatusOr<FileBuilder> FileBuilder::Start(const std::filesystem::path& path, uint64_t bytes,
                                         std::optional<uint64_t> needed) {
  FileBuilder builder;
  builder.path_ = path;
  builder.bytes_ = bytes;
  builder.needed_ = needed.value_or(bytes);
  const std::filesystem::path hidden = HiddenName(path);
  if (::unlink(hidden.c_str()) != 0 && errno != ENOENT) {
    return ErrnoError(fmt::format("remove {}", hidden.native()));
  }
  builder.fd_ = UniqueFd(::open(hidden.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
  if (builder.fd() < 0) return ErrnoError(fmt::format("create {}", hidden.native()));
  const mode_t mode = FileModeIn(path.parent_path());
  if (mode != 0600 && ::fchmod(builder.fd(), mode) != 0) {
    return ErrnoError(fmt::format("set the mode of {}", hidden.native()));
  }
  builder.hidden_ = hidden;

  if (builder.needed_ > FreeBytes(builder.fd())) return builder.NoSpace();
  // tmpfs reports free space up to its size limit, whatever memory there is. Without this check the
  // kernel would kill some process once the pages are in use.
  if (LivesInMemory(builder.fd())) {
    const uint64_t available = AvailableMemory().value_or(builder.needed_);
    if (builder.needed_ > available) {
      return Errorf(StatusCode::kResourceExhausted,
                    "{} needs {} ({} bytes) of memory, and the machine or this process's control "
                    "group has {} ({} bytes) available; stop other users of memory, raise its "
                    "limit or use a smaller model",
                    path.native(), HumanBytes(builder.needed_), builder.needed_,
                    HumanBytes(available), available);
    }
  }
  if (::ftruncate(builder.fd(), static_cast<off_t>(bytes)) != 0) {
    return errno == EFBIG || errno == ENOSPC ? builder.NoSpace()
                                             : ErrnoError(fmt::format("size {}", hidden.native()));
  }
  return builder;
}

FileBuilder::FileBuilder(FileBuilder&& other) noexcept
    : fd_(std::move(other.fd_)),
      path_(std::move(other.path_)),
      hidden_(std::exchange(other.hidden_, {})),
      bytes_(other.bytes_),
      needed_(other.needed_) {}

FileBuilder::~FileBuilder() {
  if (!hidden_.empty()) ::unlink(hidden_.c_str());
}

Status FileBuilder::Allocate(uint64_t first, uint64_t last) {
  int err;
  do {
    err = ::posix_fallocate(fd(), static_cast<off_t>(first), static_cast<off_t>(last - first));
  } while (err == EINTR);
  if (err == 0) return {};
  if (err == ENOSPC || err == EFBIG || err == ENOMEM || err == EDQUOT) return NoSpace();
  return ErrnoError(fmt::format("allocate {} for {}", HumanBytes(last - first), path_.native()),
                    err);
}

Status FileBuilder::NoSpace() const {
  struct stat file;
  const uint64_t held = ::fstat(fd(), &file) == 0 ? file.st_blocks * uint64_t{512} : 0;
  const uint64_t free = FreeBytes(fd()) + held;  // a failed attempt may hold some already
  return Errorf(StatusCode::kResourceExhausted,
                "{} needs {} ({} bytes), and its filesystem has {} ({} bytes) free; remove files "
                "there, enlarge it (tmpfs: mount -o remount,size=...) or choose another directory",
                path_.native(), HumanBytes(needed_), needed_, HumanBytes(free), free);
}

Status FileBuilder::Publish() {
  if (::rename(hidden_.c_str(), path_.c_str()) != 0) {
    return ErrnoError(fmt::format("rename {} to {}", hidden_.native(), path_.native()));
  }
  hidden_.clear();
  return {};
}

}  // namespace deltawire
