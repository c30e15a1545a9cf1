// This machine's logind settings, read from the files of logind.conf(5). A file or line that cannot
// be read or parsed is skipped, as logind does.
#pragma once

#include <filesystem>

namespace deltawire::cli {

/// Returns RemoveIPC=: whether a user loses the files in /dev/shm with the last session. The files
/// are looked up below `root`.
bool LogindRemovesIpc(const std::filesystem::path& root = "/");

}  // namespace deltawire::cli
