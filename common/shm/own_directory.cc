#include "common/shm/own_directory.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <system_error>

#include "common/base/trusted_place.h"

namespace deltawire {
namespace {

namespace fs = std::filesystem;

Status AnotherUsers(const fs::path& path, uid_t owner) {
  return Errorf(StatusCode::kPermissionDenied,
                "{} belongs to {}, and this process runs as {}: its owner could put other files in "
                "place of ours; chown it or choose another directory",
                path.native(), UserName(owner), UserName(::geteuid()));
}

}  // namespace

std::string UserName(uid_t uid) {
  const struct passwd* user = ::getpwuid(uid);
  return user == nullptr ? fmt::format("user {}", uid) : fmt::format("{} ({})", user->pw_name, uid);
}

Status CheckLinks(const fs::path& path) {
  std::error_code ec;
  const fs::path whole = fs::absolute(path, ec);
  if (ec) return ErrnoError(fmt::format("look up {}", path.native()), ec.value());
  fs::path at;
  for (const fs::path& part : whole) {
    at /= part;
    struct stat info;
    if (::lstat(at.c_str(), &info) != 0 || !S_ISLNK(info.st_mode)) continue;
    if (!IsOwnersOrRoots(at, info.st_uid)) return AnotherUsers(at, info.st_uid);
  }
  return absl::OkStatus();
}

Status CheckTrustedOwner(const fs::path& dir) {
  struct stat info;
  if (::stat(dir.c_str(), &info) != 0) return ErrnoError(fmt::format("stat {}", dir.native()));
  return IsOwnersOrRoots(dir, info.st_uid) ? absl::OkStatus() : AnotherUsers(dir, info.st_uid);
}

StatusOr<UniqueFd> OpenOwnDirectory(const fs::path& dir) {
  DW_RETURN_IF_ERROR(CheckLinks(dir));
  UniqueFd fd(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  const int err = errno;
  struct stat info;
  if (fd.get() < 0 && ::lstat(dir.c_str(), &info) == 0 && S_ISLNK(info.st_mode)) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "{} is a link, so its target could change; name the directory itself",
                  dir.native());
  }
  if (fd.get() < 0 && err == ENOTDIR) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "{} is not a directory; remove it or choose another directory", dir.native());
  }
  if (fd.get() < 0) return ErrnoError(fmt::format("open {}", dir.native()), err);
  if (::fstat(fd.get(), &info) != 0) return ErrnoError(fmt::format("stat {}", dir.native()));
  if (info.st_uid != ::geteuid()) return AnotherUsers(dir, info.st_uid);
  return fd;
}

Status MakeOwnDirectory(const fs::path& dir, mode_t mode) {
  if (::mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoError(fmt::format("create {}", dir.native()));
  }
  DW_ASSIGN_OR_RETURN(const UniqueFd fd, OpenOwnDirectory(dir));
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return ErrnoError(fmt::format("stat {}", dir.native()));
  if ((info.st_mode & 07777) == mode || ::fchmod(fd.get(), mode) == 0) return absl::OkStatus();
  return ErrnoError(fmt::format("set the mode of {}", dir.native()));
}

}  // namespace deltawire
