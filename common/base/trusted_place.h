// Whether the users who could replace a file are trusted: the owners of all directories on the way
// to it, and all who may write into one. Owner: none. Threads: any. Cost: a few system calls per
// directory. Errors: kPermissionDenied names the directory and its user; else the kernel's.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>

#include "common/base/status.h"

namespace deltawire {

/// True for this process's user and root, and in a user namespace for users of outside, whom the
/// namespace cannot name.
bool IsOwnOrRoot(uid_t uid);

/// Links are followed, and `path` itself counts. Directories with the sticky bit may be written by
/// others.
Status CheckTrustedPlace(const std::filesystem::path& path,
                         const std::function<bool(uid_t)>& trusted = IsOwnOrRoot);

}  // namespace deltawire
