#include "sender/agent/model_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>

#include "common/layout/model_dir.h"
#include "common/shm/dir_lock.h"
#include "sender/agent/fleet/group_file.h"
#include "sender/agent/halves/halves.h"
#include "sender/agent/halves/model_home.h"
#include "sender/agent/halves/side_file_store.h"

namespace deltawire::sender {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kStatBlock = 512;  // of st_blocks, whatever the file system's own

/// Removes the file if it is a regular one, and adds its memory to `freed`.
Status RemoveRegularFile(const fs::path& path, uint64_t& freed) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus() : ErrnoError(fmt::format("stat {}", path.native()));
  }
  if (!S_ISREG(info.st_mode)) return absl::OkStatus();
  if (::unlink(path.c_str()) != 0) return ErrnoError(fmt::format("remove {}", path.native()));
  freed += static_cast<uint64_t>(info.st_blocks) * kStatBlock;
  return absl::OkStatus();
}

/// Removes the directory if it is one and empty.
Status RemoveEmptyDirectory(const fs::path& path) {
  if (::rmdir(path.c_str()) == 0) return absl::OkStatus();
  if (errno == ENOENT || errno == ENOTDIR || errno == ENOTEMPTY || errno == EEXIST) {
    return absl::OkStatus();
  }
  return ErrnoError(fmt::format("remove {}", path.native()));
}

std::vector<fs::path> EntriesOf(const fs::path& dir) {
  std::vector<fs::path> all;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    all.push_back(it->path());
  }
  std::sort(all.begin(), all.end());
  return all;
}

bool IsRealDirectory(const fs::path& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

Status RemoveSideFiles(const fs::path& side, uint64_t& freed) {
  if (!IsRealDirectory(side)) return absl::OkStatus();
  for (const fs::path& entry : EntriesOf(side)) {
    const std::string name = entry.filename().string();
    if (!SideFileStore::IsOwnName(name)) continue;
    if (!IsRealDirectory(entry)) {
      DW_RETURN_IF_ERROR(RemoveRegularFile(entry, freed));
      continue;
    }
    for (const fs::path& file : EntriesOf(entry)) {
      if (!IsSideFileName(file.filename().string())) continue;
      DW_RETURN_IF_ERROR(RemoveRegularFile(file, freed));
    }
    DW_RETURN_IF_ERROR(RemoveEmptyDirectory(entry));
  }
  return RemoveEmptyDirectory(side);
}

}  // namespace

StatusOr<RemovedModel> RemoveModelFiles(const fs::path& dir, const std::string& group) {
  RemovedModel removed;
  if (!IsRealDirectory(dir)) return removed;
  DW_ASSIGN_OR_RETURN(const DirLock lock, DirLock::Acquire(dir, group));
  const std::string half[] = {Halves::PathOf(dir, 0).filename(), Halves::PathOf(dir, 1).filename()};
  for (const std::string& name :
       {std::string(Halves::kStateName), half[0], half[1], std::string(ModelHome::kOwnedName),
        std::string(kGroupFileName)}) {
    DW_RETURN_IF_ERROR(RemoveRegularFile(dir / name, removed.freed_bytes));
    // A crash leaves an unfinished file as NAME.new, with a dot in front.
    const std::string hidden = (name.starts_with('.') ? "" : ".") + name + ".new";
    DW_RETURN_IF_ERROR(RemoveRegularFile(dir / hidden, removed.freed_bytes));
  }
  DW_RETURN_IF_ERROR(RemoveSideFiles(dir / ModelHome::kSideDir, removed.freed_bytes));
  for (const fs::path& entry : EntriesOf(dir)) {
    const std::string name = entry.filename().string();
    if (name == DirLock::kFileName || removed.left.size() >= kMostLeft) continue;
    removed.left.push_back(name);
  }
  // The lock's file stays beside foreign files, to mark the directory as a model's.
  if (!removed.left.empty()) return removed;
  // The lock keeps other processes from using the directory meanwhile.
  DW_RETURN_IF_ERROR(RemoveRegularFile(dir / DirLock::kFileName, removed.freed_bytes));
  DW_RETURN_IF_ERROR(RemoveEmptyDirectory(dir));
  return removed;
}

}  // namespace deltawire::sender
