// What this machine's logind is told by the files of logind.conf(5). Owner: none; a free function.
// Threads: any. Cost: reads some small files. Errors: none; what cannot be read or understood says
// nothing, as for logind itself.
#pragma once

#include <filesystem>

namespace deltawire::cli {

/// RemoveIPC=: whether a user loses the files in /dev/shm with the last session. `root`: of the
/// file system, below which the files are.
bool LogindRemovesIpc(const std::filesystem::path& root = "/");

}  // namespace deltawire::cli
