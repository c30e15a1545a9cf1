// Whether a file's place is safe: trusted users own all directories on the way to it, and none is
// open to all users. A directory's group counts as its owner. Threads: any. Cost: a few system
// calls per directory. Errors: kPermissionDenied names the directory and its user; else the
// kernel's.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>

#include "common/base/status.h"

namespace deltawire {

/// True for this process's user and root, and in a user namespace for users of outside, whom the
/// namespace cannot name.
bool IsOwnOrRoot(uid_t uid);

/// True for what IsOwnOrRoot(uid) trusts, except for what a user of outside may have made: in a
/// user namespace, an entry of a directory that all users may write.
bool IsOwnersOrRoots(const std::filesystem::path& at, uid_t uid);

/// Links are followed, and `path` itself counts; empty: the working directory, as parent_path() of
/// a bare name. Directories with the sticky bit may be written by others.
Status CheckTrustedPlace(const std::filesystem::path& path,
                         const std::function<bool(uid_t)>& trusted = IsOwnOrRoot);

}  // namespace deltawire
