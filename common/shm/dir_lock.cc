#include "common/shm/dir_lock.h"

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <memory>
#include <string_view>
#include <system_error>

#include "common/base/log.h"
#include "common/base/write_error.h"
#include "common/shm/own_directory.h"

namespace deltawire {
namespace {

constexpr mode_t kGroupMode = 02750;
constexpr mode_t kOwnMode = 0700;
constexpr mode_t kOthers = S_IRWXG | S_IRWXO;
/// The prefix of the files and directories that both daemons keep in a model's directory.
constexpr std::string_view kOurPrefix = ".deltawire.";

/// Returns "process 1234", or another description while the owner has not written its pid yet.
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

StatusOr<struct stat> StatOf(int fd, const std::filesystem::path& dir) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return ErrnoError(fmt::format("stat {}", dir.native()));
  return info;
}

/// The files in a directory: whether this process's user made one of deltawire's hidden files.
struct Content {
  bool ours = false;
  std::string foreign;  ///< the name of another file, if there is one
};

StatusOr<Content> ContentOf(int fd, const std::filesystem::path& dir) {
  Content content;
  UniqueFd copy(::openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::fdopendir(copy.get()), ::closedir);
  if (entries == nullptr) return ErrnoError(fmt::format("read {}", dir.native()));
  copy.Release();  // closedir closes it
  for (errno = 0; const dirent* entry = ::readdir(entries.get()); errno = 0) {
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    struct stat info;
    if (name.starts_with(kOurPrefix) &&
        ::fstatat(fd, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
        info.st_uid == ::geteuid()) {
      content.ours = true;
    } else {
      content.foreign = name;
    }
  }
  if (errno != 0) return ErrnoError(fmt::format("read {}", dir.native()));
  return content;
}

/// Fails for a directory that is not for us alone. Changes nothing.
Status CheckMayTake(int fd, const std::filesystem::path& dir) {
  DW_ASSIGN_OR_RETURN(const struct stat info, StatOf(fd, dir));
  const mode_t mode = info.st_mode & 07777;
  if ((mode & S_ISVTX) != 0) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "{} has mode {:04o}, so many users keep files in it; name a directory below it",
                  dir.native(), mode);
  }
  DW_ASSIGN_OR_RETURN(const Content content, ContentOf(fd, dir));
  if (content.ours) return absl::OkStatus();
  if (!content.foreign.empty()) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "{} holds {}, which deltawire did not write; choose an empty directory",
                  dir.native(), content.foreign);
  }
  if ((mode & (S_IWGRP | S_IWOTH)) == 0) return absl::OkStatus();
  return Errorf(StatusCode::kPermissionDenied,
                "{} has mode {:04o}: others could put their files in place of ours; give it mode "
                "0700, or choose another directory",
                dir.native(), mode);
}

StatusOr<gid_t> GroupNamed(const std::string& name) {
  const struct group* group = ::getgrnam(name.c_str());
  if (group != nullptr) return group->gr_gid;
  return Errorf(StatusCode::kInvalidArgument, "there is no group \"{}\"", name);
}

Status GiveGroup(int fd, const std::filesystem::path& dir, const std::string& name, gid_t group) {
  DW_ASSIGN_OR_RETURN(const struct stat info, StatOf(fd, dir));
  // A process with more rights has set the group. A daemon outside the group would clear the
  // set-group-id bit by setting it, and a sandbox may forbid both calls.
  if (info.st_gid == group && (info.st_mode & 07777) == kGroupMode) return absl::OkStatus();
  // The set-group-id bit gives new files in the directory to the group from the start.
  if (::fchown(fd, static_cast<uid_t>(-1), group) == 0 && ::fchmod(fd, kGroupMode) == 0) {
    return absl::OkStatus();
  }
  if (errno != EPERM) return ErrnoError(fmt::format("give {} to group {}", dir.native(), name));
  return Errorf(
      StatusCode::kPermissionDenied,
      "{} cannot be given to group {}; add {} to that group, and allow a systemd unit what "
      "file-group.conf.example allows",
      dir.native(), name, UserName(::geteuid()));
}

/// Revokes the access to `dir` that an earlier run, or another process, has given. The directory's
/// mode alone keeps others from every file in it, so the files keep their modes.
Status KeepToOneself(int fd, const std::filesystem::path& dir) {
  DW_ASSIGN_OR_RETURN(const struct stat info, StatOf(fd, dir));
  const mode_t was = info.st_mode & 07777;
  if ((was & kOthers) == 0) return absl::OkStatus();
  if (::fchmod(fd, kOwnMode) != 0) {
    return ErrnoError(fmt::format("set the mode of {}", dir.native()));
  }
  LogWarn("{} had mode {:04o}, but no file-group is set; now only its owner may use it",
          dir.native(), was);
  return absl::OkStatus();
}

}  // namespace

mode_t FileModeIn(const std::filesystem::path& dir) {
  struct stat info;
  const bool group = ::stat(dir.empty() ? "." : dir.c_str(), &info) == 0 &&
                     (info.st_mode & (S_ISGID | S_IRGRP)) == (S_ISGID | S_IRGRP);
  return group ? 0640 : 0600;
}

StatusOr<DirLock> DirLock::Acquire(const std::filesystem::path& named, const std::string& group) {
  // With a trailing slash the kernel would follow a link.
  const std::filesystem::path dir = named.has_filename() ? named : named.parent_path();
  gid_t members = 0;
  if (!group.empty()) {
    DW_ASSIGN_OR_RETURN(members, GroupNamed(group));
  }
  DW_RETURN_IF_ERROR(CheckLinks(dir));
  std::error_code ec;
  if (dir.has_parent_path()) {
    std::filesystem::create_directories(dir.parent_path(), ec);
    if (ec) return ErrnoError(fmt::format("create {}", dir.parent_path().native()), ec.value());
    DW_RETURN_IF_ERROR(CheckTrustedOwner(dir.parent_path()));
  }
  if (::mkdir(dir.c_str(), kOwnMode) != 0 && errno != EEXIST) {
    return ErrnoError(fmt::format("create {}", dir.native()));
  }
  DirLock lock;
  lock.dir_ = dir;
  DW_ASSIGN_OR_RETURN(lock.dir_fd_, OpenOwnDirectory(dir));
  // No call above changes anything that existed.
  DW_RETURN_IF_ERROR(CheckMayTake(lock.dir_fd_.get(), dir));
  DW_RETURN_IF_ERROR(lock.TakeLock());
  // Comes after TakeLock, which fails if another owner has given the directory a group.
  DW_RETURN_IF_ERROR(group.empty() ? KeepToOneself(lock.dir_fd_.get(), dir)
                                   : GiveGroup(lock.dir_fd_.get(), dir, group, members));
  DW_RETURN_IF_ERROR(WritePid(lock.fd_.get(), dir / kFileName));
  return lock;
}

Status DirLock::TakeLock() {
  const std::filesystem::path file = dir_ / kFileName;
  UniqueFd fd(::openat(dir_fd_.get(), kFileName, O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (fd.get() < 0) return ErrnoError(fmt::format("open {}", file.native()));
  DW_ASSIGN_OR_RETURN(const struct stat info, StatOf(fd.get(), file));
  if (!S_ISREG(info.st_mode) || info.st_uid != ::geteuid() || info.st_nlink != 1) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "{} is not a file that deltawire made; remove it or choose another directory",
                  file.native());
  }
  int rc;
  do {
    rc = ::flock(fd.get(), LOCK_EX | LOCK_NB);
  } while (rc != 0 && errno == EINTR);
  if (rc == 0) {
    fd_ = std::move(fd);
    return absl::OkStatus();
  }
  if (errno != EWOULDBLOCK) return ErrnoError(fmt::format("lock {}", file.native()));
  return Errorf(StatusCode::kAlreadyExists,
                "{} is owned by {}; stop it or choose another directory", dir_.native(),
                DescribeOwner(fd.get()));
}

bool DirLock::IsInPlace() const {
  // A link to the directory does not count: Acquire would reject it.
  struct stat ours, named, locked, found;
  return ::fstat(dir_fd_.get(), &ours) == 0 && ::lstat(dir_.c_str(), &named) == 0 &&
         ours.st_dev == named.st_dev && ours.st_ino == named.st_ino &&
         ::fstat(fd_.get(), &locked) == 0 &&
         ::fstatat(dir_fd_.get(), kFileName, &found, AT_SYMLINK_NOFOLLOW) == 0 &&
         locked.st_dev == found.st_dev && locked.st_ino == found.st_ino;
}

DirLock::~DirLock() {
  // The file stays: removing it could remove a file that another process has just locked.
  if (fd_.get() >= 0) [[maybe_unused]]
    const int rc = ::ftruncate(fd_.get(), 0);
}

}  // namespace deltawire
