#include "common/base/trusted_place.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <system_error>

namespace deltawire {
namespace fs = std::filesystem;
namespace {

constexpr uid_t kUnmapped = 65534;

// In the initial user namespace each id maps to itself, and 65534 is an ordinary user.
bool IsInUserNamespace() {
  std::ifstream map("/proc/self/uid_map");
  uint64_t inside = 0, outside = 0, count = 0;
  map >> inside >> outside >> count;
  return map.good() && !(inside == 0 && outside == 0 && count == UINT32_MAX);
}

Status CheckEach(const fs::path& place, const fs::path& path,
                 const std::function<bool(uid_t)>& trusted) {
  for (fs::path at = place;; at = at.parent_path()) {
    struct stat info {};
    if (::lstat(at.c_str(), &info) != 0) return ErrnoError("stat " + at.native());
    const bool open_to_all =
        S_ISDIR(info.st_mode) && (info.st_mode & S_IWOTH) != 0 && (info.st_mode & S_ISVTX) == 0;
    if (open_to_all) {
      return Errorf(StatusCode::kPermissionDenied,
                    "{} may be written by all users, who could replace {}; remove that right "
                    "(chmod o-w), or choose another directory",
                    at.native(), path.native());
    }
    const bool unmapped = info.st_uid == kUnmapped && IsInUserNamespace();
    if (!trusted(info.st_uid) || (unmapped && !IsOwnersOrRoots(at, info.st_uid))) {
      return Errorf(StatusCode::kPermissionDenied,
                    "{} belongs to user {}, who could replace {}, and this process runs as user "
                    "{}; chown it, or choose another directory",
                    at.native(), info.st_uid, path.native(), ::geteuid());
    }
    if (at == at.root_path()) return absl::OkStatus();
  }
}

}  // namespace

bool IsOwnOrRoot(uid_t uid) {
  return uid == ::geteuid() || uid == 0 || (uid == kUnmapped && IsInUserNamespace());
}

bool IsOwnersOrRoots(const fs::path& at, uid_t uid) {
  if (uid == ::geteuid() || uid == 0) return true;
  struct stat above {};
  return IsOwnOrRoot(uid) &&
         ::stat(fs::absolute(at).lexically_normal().parent_path().c_str(), &above) == 0 &&
         (above.st_mode & S_IWOTH) == 0;
}

Status CheckTrustedPlace(const fs::path& path, const std::function<bool(uid_t)>& trusted) {
  if (path.empty()) return CheckTrustedPlace(".", trusted);
  std::error_code ec;
  const fs::path real = fs::canonical(path, ec);
  if (ec) return ErrnoError("look for " + path.native(), ec.value());
  // Check the path as spelled first: the owner of a link's directory can replace the link.
  DW_RETURN_IF_ERROR(CheckEach(fs::absolute(path).lexically_normal(), path, trusted));
  return CheckEach(real, path, trusted);
}

}  // namespace deltawire
