// Opens and makes directories that only this process's user may change. Plain functions,
// thread-safe. Cost: a few system calls. Errors name the path: kFailedPrecondition for a link or a
// file in its place, kPermissionDenied for another user's directory.
#pragma once

#include <sys/types.h>

#include <filesystem>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace deltawire {

/// In each directory that a receiver has taken, beside files whose names are also a sender's.
inline constexpr const char* kReceiverMark = ".deltawire.receiver";

/// kPermissionDenied if another user (but root) owns a link in the path: it leads where its owner
/// wants, also after this check.
Status CheckLinks(const std::filesystem::path& path);

/// A descriptor of a directory that belongs to this process's user. A link in its place is refused,
/// and so is a path through a link that another user owns.
StatusOr<UniqueFd> OpenOwnDirectory(const std::filesystem::path& dir);

/// Makes the directory, or checks that it is one of ours, and gives it the mode.
Status MakeOwnDirectory(const std::filesystem::path& dir, mode_t mode);

/// kPermissionDenied unless the directory, or the one that a link at `dir` leads to, belongs to
/// this process's user or to root.
Status CheckTrustedOwner(const std::filesystem::path& dir);

/// "alice (1000)".
std::string UserName(uid_t uid);

}  // namespace deltawire
