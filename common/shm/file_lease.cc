#include "common/shm/file_lease.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <fstream>
#include <system_error>

#include "common/base/status.h"
#include "common/shm/mapped_file.h"

namespace deltawire {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostHolders = 8;

std::string CommandOf(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/comm", pid));
  std::string name;
  std::getline(in, name);
  return name;
}

bool HasOpen(pid_t pid, const struct stat& file, int own_fd) {
  std::error_code ec;
  for (fs::directory_iterator it(fmt::format("/proc/{}/fd", pid), ec), end; !ec && it != end;
       it.increment(ec)) {
    if (pid == ::getpid() && it->path().filename() == std::to_string(own_fd)) continue;
    struct stat open;
    if (::stat(it->path().c_str(), &open) == 0 && open.st_ino == file.st_ino &&
        open.st_dev == file.st_dev) {
      return true;
    }
  }
  return false;
}

bool HasMapped(pid_t pid, const struct stat& file) {
  std::ifstream in(fmt::format("/proc/{}/maps", pid));
  for (std::string line; std::getline(in, line);) {
    unsigned major = 0, minor = 0;
    unsigned long inode = 0;
    if (std::sscanf(line.c_str(), "%*s %*s %*s %x:%x %lu", &major, &minor, &inode) != 3) continue;
    // Overlay filesystems show another device number here; then inode and file suffix must do.
    const bool device = major == ::major(file.st_dev) && minor == ::minor(file.st_dev);
    if (inode == file.st_ino && (device || line.find(".safetensors") != std::string::npos)) {
      return true;
    }
  }
  return false;
}

}  // namespace

FileLease::Answer FileLease::Try() {
  if (wanted()) {
    Release();  // or the opener would wait until the kernel breaks the lease
    return Answer::kInUse;
  }
  if (held_) return Answer::kAlone;
  // The kernel's default signal, SIGIO, would end the process.
  if (::fcntl(fd_, F_SETSIG, SIGURG) != 0 || ::fcntl(fd_, F_SETLEASE, F_WRLCK) != 0) {
    const int err = errno;
    if (err == EAGAIN) return Answer::kInUse;
    reason_ = err == EACCES   ? "the file is another user's"
              : err == EINVAL ? "this filesystem, or the kernel (fs.leases-enable), has no leases"
                              : std::generic_category().message(err);
    return Answer::kUnsupported;
  }
  held_ = true;
  // A process may have looked up the file's name before it was removed, and be opening the file
  // now. Then the kernel already wants the lease back.
  if (::fcntl(fd_, F_GETLEASE) == F_WRLCK) return Answer::kAlone;
  Release();
  return Answer::kInUse;
}

bool FileLease::wanted() const { return held_ && ::fcntl(fd_, F_GETLEASE) != F_WRLCK; }

void FileLease::Release() {
  if (!held_) return;
  ::fcntl(fd_, F_SETLEASE, F_UNLCK);
  held_ = false;
}

std::string LeaseProblem(const fs::path& dir) {
  const fs::path path = dir / ".deltawire.lease-probe";
  ::unlink(path.c_str());
  const UniqueFd own(::open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
  if (own.get() < 0) return std::string(MessageOf(ErrnoError("create " + path.native())));
  const size_t bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* mapped = MAP_FAILED;
  if (::ftruncate(own.get(), static_cast<off_t>(bytes)) == 0) {
    const UniqueFd other(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, other.get(), 0);
  }
  ::unlink(path.c_str());
  if (mapped == MAP_FAILED) return std::string(MessageOf(ErrnoError("map " + path.native())));
  FileLease lease(own.get());
  const FileLease::Answer used = lease.Try();
  ::munmap(mapped, bytes);
  lease.Release();
  if (used == FileLease::Answer::kUnsupported) return lease.reason();
  if (used == FileLease::Answer::kAlone) return "leases here do not tell of mappings";
  if (lease.Try() == FileLease::Answer::kAlone) return {};
  return "leases are refused here for files that nobody else has open";
}

std::vector<FileHolder> WhoHas(int fd) {
  std::vector<FileHolder> holders;
  struct stat file;
  if (::fstat(fd, &file) != 0) return holders;
  std::error_code ec;
  for (fs::directory_iterator it("/proc", ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().native();
    pid_t pid = 0;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (parsed.ec != std::errc() || parsed.ptr != name.data() + name.size()) continue;
    if (!HasOpen(pid, file, fd) && (pid == ::getpid() || !HasMapped(pid, file))) continue;
    holders.push_back({pid, CommandOf(pid)});
    if (holders.size() == kMostHolders) break;
  }
  return holders;
}

std::string DescribeHolders(const std::vector<FileHolder>& holders) {
  if (holders.empty()) return "a process that /proc does not show";
  std::string text;
  for (const FileHolder& h : holders) {
    text += fmt::format("{}process {} ({})", text.empty() ? "" : ", ", h.pid, h.name);
  }
  return text;
}

}  // namespace deltawire
