// Directories that only this process's user may change. Errors name the path: kFailedPrecondition
// for a link or a file in its place, kPermissionDenied for another user's directory.
#pragma once

#include <sys/types.h>

#include <filesystem>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace deltawire {

/// The mark in each directory of a receiver, whose other file names a sender uses too.
inline constexpr const char* kReceiverMark = ".deltawire.receiver";

/// Returns kPermissionDenied if another user (but root) owns a link in the path, because its owner
/// can redirect it, also after this check.
Status CheckLinks(const std::filesystem::path& path);

/// Opens a directory of this process's user. Rejects a link in its place, and a path through a link
/// that another user owns.
StatusOr<UniqueFd> OpenOwnDirectory(const std::filesystem::path& dir);

/// Makes the directory, or checks that it is one of ours, and sets its mode.
Status MakeOwnDirectory(const std::filesystem::path& dir, mode_t mode);

/// Returns kPermissionDenied unless the directory, or the target of a link at `dir`, belongs to
/// this process's user or to root.
Status CheckTrustedOwner(const std::filesystem::path& dir);

/// Returns "alice (1000)".
std::string UserName(uid_t uid);

}  // namespace deltawire
