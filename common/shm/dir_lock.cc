#include "common/shm/dir_lock.h"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <system_error>

#include "common/base/log.h"
#include "common/base/unique_fd.h"
#include "common/base/write_error.h"

namespace deltawire {
namespace {

constexpr mode_t kGroupMode = 02750;
constexpr mode_t kOwnMode = 0700;
constexpr mode_t kOthers = S_IRWXG | S_IRWXO;

/// "process 1234", or another description while the owner has not written its pid yet.
std::string DescribeOwner(int fd) {
  char text[32];
  const ssize_t n = ::pread(fd, text, sizeof text, 0);
  long pid = 0;
  if (n > 0 && std::from_chars(text, text + n, pid).ec == std::errc() && pid > 0) {
    return fmt::format("process {}", pid);
  }
  return "another process, which has only just started";
}

Status WritePid(int fd, const std::filesystem::path& file) {
  const std::string text = fmt::format("{}\n", ::getpid());
  if (::ftruncate(fd, 0) != 0 ||
      ::pwrite(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return WriteError(file);
  }
  return {};
}

std::string UserName(uid_t uid) {
  const struct passwd* user = ::getpwuid(uid);
  return user == nullptr ? fmt::format("user {}", uid) : fmt::format("{} ({})", user->pw_name, uid);
}

Status CheckOwner(const std::filesystem::path& dir) {
  struct stat info;
  if (::stat(dir.c_str(), &info) != 0) return ErrnoError(fmt::format("stat {}", dir.native()));
  if (info.st_uid == ::geteuid() || info.st_uid == 0) return {};
  return Errorf(StatusCode::kPermissionDenied,
                "{} belongs to {}, and this process runs as {}: its owner could put other files in "
                "place of ours; chown it or choose another directory",
                dir.native(), UserName(info.st_uid), UserName(::geteuid()));
}

Status GiveGroup(const std::filesystem::path& dir, const std::string& name) {
  const struct group* group = ::getgrnam(name.c_str());
  if (group == nullptr) {
    return Errorf(StatusCode::kInvalidArgument, "there is no group \"{}\"", name);
  }
  struct stat info;
  if (::stat(dir.c_str(), &info) != 0) return ErrnoError(fmt::format("stat {}", dir.native()));
  // Somebody who may do more has given it to the group. A daemon that is not in the group would
  // take the set-group-id bit away by setting it, and a sandbox may forbid both calls.
  if (info.st_gid == group->gr_gid && (info.st_mode & 07777) == kGroupMode) return {};
  // The set-group-id bit gives new files in it to the group from the start.
  if (::chown(dir.c_str(), static_cast<uid_t>(-1), group->gr_gid) == 0 &&
      ::chmod(dir.c_str(), kGroupMode) == 0) {
    return {};
  }
  if (errno != EPERM) return ErrnoError(fmt::format("give {} to group {}", dir.native(), name));
  return Errorf(StatusCode::kPermissionDenied,
                "{} cannot be given to group {}: {} has to be in that group, and a unit of systemd "
                "needs what file-group.conf.example allows",
                dir.native(), name, UserName(::geteuid()));
}

/// Takes `dir`, and the files in it, back from whom an earlier run or somebody else let in.
Status KeepToOneself(const std::filesystem::path& dir) {
  struct stat info;
  if (::stat(dir.c_str(), &info) != 0) return ErrnoError(fmt::format("stat {}", dir.native()));
  const mode_t was = info.st_mode & 07777;
  if ((was & kOthers) == 0) return {};
  // The files first: until the directory's mode is changed, a crash leaves this to be done again.
  std::error_code ec;
  for (std::filesystem::directory_iterator it(dir, ec), end; !ec && it != end; it.increment(ec)) {
    // By descriptor, since who may write here could put a link in the file's place meanwhile.
    const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    const UniqueFd fd(::open(it->path().c_str(), flags));
    struct stat file;
    if (fd.get() < 0 || ::fstat(fd.get(), &file) != 0 || !S_ISREG(file.st_mode)) continue;
    if (file.st_uid != ::geteuid() || (file.st_mode & kOthers) == 0) continue;
    [[maybe_unused]] const int rc = ::fchmod(fd.get(), file.st_mode & S_IRWXU);
  }
  if (::chmod(dir.c_str(), kOwnMode) == 0) {
    LogWarn("{} had mode {:04o}, and no file-group is set: it is its owner's alone now",
            dir.native(), was);
    return {};
  }
  const int err = errno;
  if ((was & (S_IWGRP | S_IWOTH)) == 0) {
    LogWarn("{} has mode {:04o}, which cannot be changed ({}): others may look into it",
            dir.native(), was, std::strerror(err));
    return {};
  }
  return Errorf(StatusCode::kPermissionDenied,
                "{} has mode {:04o}, which cannot be changed ({}): others could put their files in "
                "place of ours; give it mode 0700, or choose another directory",
                dir.native(), was, std::strerror(err));
}

}  // namespace

mode_t FileModeIn(const std::filesystem::path& dir) {
  struct stat info;
  const bool group = ::stat(dir.empty() ? "." : dir.c_str(), &info) == 0 &&
                     (info.st_mode & (S_ISGID | S_IRGRP)) == (S_ISGID | S_IRGRP);
  return group ? 0640 : 0600;
}

StatusOr<DirLock> DirLock::Acquire(const std::filesystem::path& dir, const std::string& group) {
  std::error_code ec;
  if (dir.has_parent_path()) std::filesystem::create_directories(dir.parent_path(), ec);
  if (ec) return ErrnoError(fmt::format("create {}", dir.parent_path().native()), ec.value());
  if (::mkdir(dir.c_str(), kOwnMode) != 0 && errno != EEXIST) {
    return ErrnoError(fmt::format("create {}", dir.native()));
  }
  if (dir.has_parent_path()) DW_RETURN_IF_ERROR(CheckOwner(dir.parent_path()));
  DW_RETURN_IF_ERROR(CheckOwner(dir));
  if (!group.empty()) DW_RETURN_IF_ERROR(GiveGroup(dir, group));
  const std::filesystem::path file = dir / kFileName;
  DirLock lock;
  lock.file_ = file;
  lock.fd_ = ::open(file.c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock.fd_ < 0) return ErrnoError(fmt::format("open {}", file.native()));
  int rc;
  do {
    rc = ::flock(lock.fd_, LOCK_EX | LOCK_NB);
  } while (rc != 0 && errno == EINTR);
  if (rc != 0) {
    const int err = errno;
    const std::string owner = DescribeOwner(lock.fd_);
    ::close(std::exchange(lock.fd_, -1));  // else the destructor would empty the owner's file
    if (err != EWOULDBLOCK) return ErrnoError(fmt::format("lock {}", file.native()), err);
    return Errorf(StatusCode::kAlreadyExists,
                  "{} is owned by {}; stop it or choose another directory", dir.native(), owner);
  }
  // Not before: the owner that was just named may have a group.
  if (group.empty()) DW_RETURN_IF_ERROR(KeepToOneself(dir));
  DW_RETURN_IF_ERROR(WritePid(lock.fd_, file));
  return lock;
}

DirLock::DirLock(DirLock&& other) noexcept
    : file_(std::move(other.file_)), fd_(std::exchange(other.fd_, -1)) {}

DirLock& DirLock::operator=(DirLock&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(fd_, other.fd_);
  return *this;
}

bool DirLock::IsInPlace() const {
  struct stat locked, found;
  return ::fstat(fd_, &locked) == 0 && ::stat(file_.c_str(), &found) == 0 &&
         locked.st_dev == found.st_dev && locked.st_ino == found.st_ino;
}

DirLock::~DirLock() {
  if (fd_ < 0) return;
  // The file stays: removing it could remove a file that another process has just locked.
  [[maybe_unused]] const int rc = ::ftruncate(fd_, 0);
  ::close(fd_);
}

}  // namespace deltawire
