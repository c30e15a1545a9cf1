#include "tests/simulation/kernel_calls.h"

#include <dirent.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>

#include "tests/simulation/process.h"
#include "tests/simulation/scheduler.h"

using deltawire::simulation::Process;
using deltawire::simulation::Scheduler;
using deltawire::simulation::ThisProcess;

namespace deltawire::simulation {
namespace {

uint64_t g_file_changes = 0;
void (*g_on_renamed)(const char* path) = nullptr;

/// Returns a call's result, after which a name may show other bytes.
template <typename R>
R Changed(R result) {
  ++g_file_changes;
  return result;
}

void Step(const char* what) {
  if (Scheduler* scheduler = Scheduler::current()) scheduler->Point(what);
}

/// Whether this call finds the file system full; then errno says so.
bool IsFull() {
  const Process* process = ThisProcess();
  if (process == nullptr || process->file_faults() == 0) return false;
  if (!Scheduler::current()->random().Chance(process->file_faults())) return false;
  errno = ENOSPC;
  return true;
}

/// A write into a full file system writes a part, or nothing.
ssize_t Write(size_t bytes, const std::function<ssize_t(size_t bytes)>& write) {
  if (!IsFull()) return write(bytes);
  return bytes < 2 || Scheduler::current()->random().Chance(0.5) ? -1 : write(bytes / 2);
}

/// The kernel breaks a lease by force after this time; no process of a history may hold one so
/// long.
constexpr auto kLeaseBreak = std::chrono::seconds(45);

/// An open that must wait for a lease waits in virtual time; in the kernel it would stop all
/// fibers.
int OpenUnlessLeased(const char* path, int flags, mode_t mode) {
  Scheduler* scheduler = Scheduler::current();
  if (scheduler == nullptr || scheduler->fiber() == nullptr) return __real_open(path, flags, mode);
  const Time start = scheduler->now();
  while (true) {
    // The flag stays: it means nothing to later calls for a file.
    const int fd = __real_open(path, flags | O_NONBLOCK, mode);
    if (fd >= 0 || errno != EWOULDBLOCK || (flags & O_NONBLOCK) != 0) return fd;
    if (scheduler->now() - start > kLeaseBreak) {
      scheduler->Fail(std::string("an opener has waited 45 s for the lease of ") + path);
    }
    scheduler->Sleep(std::chrono::milliseconds(2));
  }
}

}  // namespace

uint64_t FileChanges() { return g_file_changes; }

void OnRenamed(void (*listener)(const char* path)) { g_on_renamed = listener; }

}  // namespace deltawire::simulation

using deltawire::simulation::Changed;
using deltawire::simulation::IsFull;
using deltawire::simulation::OpenUnlessLeased;
using deltawire::simulation::Step;
using deltawire::simulation::Write;

extern "C" {

int __real_rename(const char* from, const char* to);
int __real_renameat2(int from_dir, const char* from, int to_dir, const char* to, unsigned flags);
int __real_link(const char* from, const char* to);
int __real_linkat(int from_dir, const char* from, int to_dir, const char* to, int flags);
int __real_unlink(const char* path);
int __real_mkdir(const char* path, mode_t mode);
int __real_ftruncate(int fd, off_t bytes);
int __real_posix_fallocate(int fd, off_t at, off_t bytes);
int __real_flock(int fd, int operation);
ssize_t __real_pwrite(int fd, const void* from, size_t bytes, off_t at);
ssize_t __real_write(int fd, const void* from, size_t bytes);
int __real_openat(int dir, const char* path, int flags, ...);
DIR* __real_fdopendir(int fd);
int __real_madvise(void* at, size_t bytes, int advice);
ssize_t __real_getrandom(void* to, size_t bytes, unsigned flags);

int __wrap_open(const char* path, int flags, ...) {
  va_list args;
  va_start(args, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(args, mode_t) : 0;
  va_end(args);
  Step("open");
  if ((flags & O_CREAT) != 0 && IsFull()) return -1;
  const int fd = OpenUnlessLeased(path, flags, mode);
  if (Process* process = ThisProcess(); process != nullptr && fd >= 0) process->Opened(fd);
  return fd;
}

int __wrap_openat(int dir, const char* path, int flags, ...) {
  va_list args;
  va_start(args, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(args, mode_t) : 0;
  va_end(args);
  Step("openat");
  if ((flags & O_CREAT) != 0 && IsFull()) return -1;
  const int fd = __real_openat(dir, path, flags, mode);
  if (Process* process = ThisProcess(); process != nullptr && fd >= 0) process->Opened(fd);
  return fd;
}

// The stream closes the descriptor, without a call that is seen here.
DIR* __wrap_fdopendir(int fd) {
  if (Process* process = ThisProcess()) process->Closed(fd);
  return __real_fdopendir(fd);
}

int __wrap_close(int fd) {
  Step("close");
  if (Process* process = ThisProcess()) process->Closed(fd);
  return __real_close(fd);
}

void* __wrap_mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  void* base = __real_mmap(at, bytes, protection, flags, fd, offset);
  if (fd >= 0 && (protection & PROT_WRITE) != 0) ++deltawire::simulation::g_file_changes;
  struct stat file;
  Process* process = ThisProcess();
  if (process != nullptr && base != MAP_FAILED && fd >= 0 && ::fstat(fd, &file) == 0) {
    process->Mapped({.base = static_cast<std::byte*>(base),
                     .bytes = bytes,
                     .inode = file.st_ino,
                     .writable = (protection & PROT_WRITE) != 0});
  }
  return base;
}

int __wrap_munmap(void* at, size_t bytes) {
  if (Process* process = ThisProcess()) process->Unmapped(at);
  return __real_munmap(at, bytes);
}

int __wrap_fcntl(int fd, int command, ...) {
  va_list args;
  va_start(args, command);
  void* argument = va_arg(args, void*);
  va_end(args);
  if (command == F_SETLEASE) Step("lease");
  Process* process = ThisProcess();
  const bool wanted = command == F_SETLEASE && argument == reinterpret_cast<void*>(F_WRLCK);
  if (wanted && process != nullptr && !process->leases()) {
    errno = EINVAL;
    return -1;
  }
  const int result = __real_fcntl(fd, command, argument);
  if (process != nullptr && result >= 0 && (command == F_DUPFD || command == F_DUPFD_CLOEXEC)) {
    process->Opened(result);
  }
  return result;
}

int __wrap_rename(const char* from, const char* to) {
  Step("rename");
  if (IsFull()) return -1;
  const int renamed = Changed(__real_rename(from, to));
  // No other fiber runs in between.
  if (renamed == 0 && deltawire::simulation::g_on_renamed != nullptr) {
    deltawire::simulation::g_on_renamed(to);
  }
  return renamed;
}

int __wrap_renameat2(int from_dir, const char* from, int to_dir, const char* to, unsigned flags) {
  Step("renameat2");
  Process* process = ThisProcess();
  if (process != nullptr && !process->exchange() && (flags & RENAME_EXCHANGE) != 0) {
    errno = EINVAL;
    return -1;
  }
  return Changed(__real_renameat2(from_dir, from, to_dir, to, flags));
}

int __wrap_link(const char* from, const char* to) {
  Step("link");
  if (IsFull()) return -1;
  return Changed(__real_link(from, to));
}

int __wrap_linkat(int from_dir, const char* from, int to_dir, const char* to, int flags) {
  Step("linkat");
  if (IsFull()) return -1;
  return Changed(__real_linkat(from_dir, from, to_dir, to, flags));
}

int __wrap_unlink(const char* path) {
  Step("unlink");
  return Changed(__real_unlink(path));
}

int __wrap_mkdir(const char* path, mode_t mode) {
  Step("mkdir");
  if (IsFull()) return -1;
  return __real_mkdir(path, mode);
}

int __wrap_ftruncate(int fd, off_t bytes) {
  Step("ftruncate");
  if (bytes > 0 && IsFull()) return -1;
  return Changed(__real_ftruncate(fd, bytes));
}

int __wrap_posix_fallocate(int fd, off_t at, off_t bytes) {
  Step("fallocate");
  if (IsFull()) return ENOSPC;
  return __real_posix_fallocate(fd, at, bytes);
}

int __wrap_flock(int fd, int operation) {
  Step("flock");
  return __real_flock(fd, operation);
}

ssize_t __wrap_pwrite(int fd, const void* from, size_t bytes, off_t at) {
  Step("pwrite");
  return Write(bytes, [&](size_t part) { return Changed(__real_pwrite(fd, from, part, at)); });
}

ssize_t __wrap_write(int fd, const void* from, size_t bytes) {
  Step("write");
  return Write(bytes, [&](size_t part) { return Changed(__real_write(fd, from, part)); });
}

int __wrap_madvise(void* at, size_t bytes, int advice) {
  // A file system without room for the pages fails so.
  if (bytes > 0 && advice == MADV_POPULATE_WRITE && IsFull()) {
    errno = EFAULT;
    return -1;
  }
  return __real_madvise(at, bytes, advice);
}

ssize_t __wrap_getrandom(void* to, size_t bytes, unsigned flags) {
  Scheduler* scheduler = Scheduler::current();
  if (scheduler == nullptr) return __real_getrandom(to, bytes, flags);
  for (size_t done = 0; done < bytes; done += sizeof(uint64_t)) {
    const uint64_t word = scheduler->random().Next();
    std::memcpy(static_cast<std::byte*>(to) + done, &word, std::min(sizeof word, bytes - done));
  }
  return static_cast<ssize_t>(bytes);
}

// The C++ library's own system calls are not replaced, so its functions are. They are no steps.
#define DW_REMOVE(prefix) prefix##_ZNSt10filesystem6removeERKNS_7__cxx114pathERSt10error_code
#define DW_REMOVE_ALL(prefix) \
  prefix##_ZNSt10filesystem10remove_allERKNS_7__cxx114pathERSt10error_code
#define DW_RENAME(prefix) prefix##_ZNSt10filesystem6renameERKNS_7__cxx114pathES3_RSt10error_code
#define DW_LINK(prefix) \
  prefix##_ZNSt10filesystem16create_hard_linkERKNS_7__cxx114pathES3_RSt10error_code

bool DW_REMOVE(__real_)(const std::filesystem::path& path, std::error_code& error);
uintmax_t DW_REMOVE_ALL(__real_)(const std::filesystem::path& path, std::error_code& error);
void DW_RENAME(__real_)(const std::filesystem::path& from, const std::filesystem::path& to,
                        std::error_code& error);
void DW_LINK(__real_)(const std::filesystem::path& to, const std::filesystem::path& link,
                      std::error_code& error);

bool DW_REMOVE(__wrap_)(const std::filesystem::path& path, std::error_code& error) {
  return Changed(DW_REMOVE(__real_)(path, error));
}

uintmax_t DW_REMOVE_ALL(__wrap_)(const std::filesystem::path& path, std::error_code& error) {
  return Changed(DW_REMOVE_ALL(__real_)(path, error));
}

void DW_RENAME(__wrap_)(const std::filesystem::path& from, const std::filesystem::path& to,
                        std::error_code& error) {
  DW_RENAME(__real_)(from, to, error);
  ++deltawire::simulation::g_file_changes;
}

void DW_LINK(__wrap_)(const std::filesystem::path& to, const std::filesystem::path& link,
                      std::error_code& error) {
  DW_LINK(__real_)(to, link, error);
  ++deltawire::simulation::g_file_changes;
}

}  // extern "C"
