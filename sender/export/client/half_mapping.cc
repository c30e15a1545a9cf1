#include "sender/export/client/half_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/unique_fd.h"
#include "sender/export/client/sender_socket.h"

namespace deltawire {

StatusOr<std::shared_ptr<HalfMapping>> HalfMapping::Map(const std::string& path, uid_t sender,
                                                        bool populate) {
  const UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (fd.get() < 0) return ErrnoError("open " + path);
  DW_RETURN_IF_ERROR(CheckHalfOwner(fd.get(), path, sender));
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return ErrnoError("fstat " + path);
  const auto size = static_cast<size_t>(info.st_size);
  // The agent allocated the pages. Populating only fills this process's page tables, once per half.
  const int flags = MAP_SHARED | (populate ? MAP_POPULATE : 0);
  void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, fd.get(), 0);
  if (base == MAP_FAILED) return ErrnoError("mmap " + path);
  // Otherwise the half would count as in use as long as a forked child of the trainer lives.
  if (madvise(base, size, MADV_DONTFORK) != 0) {
    const Status error = ErrnoError("madvise " + path);
    munmap(base, size);
    return error;
  }
  auto mapping = std::shared_ptr<HalfMapping>(new HalfMapping);
  mapping->bytes_ = {static_cast<std::byte*>(base), size};
  mapping->process_ = getpid();
  mapping->inode_ = info.st_ino;
  mapping->path_ = path;
  return mapping;
}

HalfMapping::~HalfMapping() {
  // In a forked child this address may have other memory.
  if (getpid() == process_) munmap(bytes_.data(), bytes_.size());
}

bool HalfMapping::Current(const std::string& path) const {
  struct stat info {};
  return path == path_ && stat(path.c_str(), &info) == 0 && info.st_ino == inode_;
}

}  // namespace deltawire
