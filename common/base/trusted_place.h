// A check that a file's place is safe: trusted users own all directories on its path, and none is
// writable by all users. A directory's group is trusted like its owner. kPermissionDenied names the
// directory and its user.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>

#include "common/base/status.h"

namespace deltawire {

/// Returns true for this process's user and root. In a user namespace it is also true for outside
/// users, which the namespace cannot name.
bool IsOwnOrRoot(uid_t uid);

/// Like IsOwnOrRoot(uid), but false for an entry that an outside user may have made: in a user
/// namespace, an entry of a directory that all users may write.
bool IsOwnersOrRoots(const std::filesystem::path& at, uid_t uid);

/// Follows links and checks `path` itself too. Empty means the working directory, as parent_path()
/// of a bare name. A directory that others may write passes if it has the sticky bit.
Status CheckTrustedPlace(const std::filesystem::path& path,
                         const std::function<bool(uid_t)>& trusted = IsOwnOrRoot);

}  // namespace deltawire
