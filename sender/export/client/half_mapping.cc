#include "sender/export/client/half_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace deltawire {

StatusOr<std::shared_ptr<HalfMapping>> HalfMapping::Map(const std::string& path, bool populate) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return ErrnoError("open " + path);
  struct stat info {};
  if (fstat(fd, &info) != 0) {
    const Status error = ErrnoError("fstat " + path);
    close(fd);
    return error;
  }
  const auto size = static_cast<size_t>(info.st_size);
  // The agent allocated the pages; populating only fills this process's page tables, once per half.
  const int flags = MAP_SHARED | (populate ? MAP_POPULATE : 0);
  void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, fd, 0);
  const int err = errno;
  close(fd);
  if (base == MAP_FAILED) return ErrnoError("mmap " + path, err);
  auto mapping = std::shared_ptr<HalfMapping>(new HalfMapping);
  mapping->bytes_ = {static_cast<std::byte*>(base), size};
  mapping->inode_ = info.st_ino;
  mapping->path_ = path;
  return mapping;
}

HalfMapping::~HalfMapping() { munmap(bytes_.data(), bytes_.size()); }

bool HalfMapping::Current(const std::string& path) const {
  struct stat info {};
  return path == path_ && stat(path.c_str(), &info) == 0 && info.st_ino == inode_;
}

}  // namespace deltawire
