#include "cli/new_directory.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "common/base/unique_fd.h"

namespace deltawire::cli {
namespace {

namespace fs = std::filesystem;

bool IsIn(const fs::path& inner, const fs::path& outer) {
  std::error_code ec;
  const fs::path a = fs::weakly_canonical(inner, ec), b = fs::weakly_canonical(outer, ec);
  return std::mismatch(b.begin(), b.end(), a.begin(), a.end()).first == b.end();
}

/// Returns whether `path` does not exist, or is an empty directory.
bool IsFree(const fs::path& path) {
  std::error_code ec;
  if (!fs::exists(fs::symlink_status(path, ec))) return true;
  return fs::is_directory(path, ec) && fs::is_empty(path, ec) && !ec;
}

Status SyncDirectory(const fs::path& dir) {
  const UniqueFd fd(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some network filesystems store names by themselves and refuse the call with EINVAL.
  if (fd.get() >= 0 && (::fsync(fd.get()) == 0 || errno == EINVAL)) return absl::OkStatus();
  return ErrnoError(fmt::format("bring the names in {} to the disk", dir.native()));
}

}  // namespace

StatusOr<NewDirectory> NewDirectory::Create(const fs::path& to, bool replace,
                                            const std::vector<fs::path>& sources) {
  // `to` may end in a slash.
  const fs::path named = fs::absolute(to.has_filename() ? to : to.parent_path());
  for (const fs::path& source : sources) {
    if (!IsIn(source, named)) continue;
    return Errorf(StatusCode::kInvalidArgument,
                  "{} is read from, and would be replaced: name another directory to write to",
                  source.native());
  }
  if (!replace && !IsFree(named)) {
    return Errorf(
        StatusCode::kAlreadyExists,
        "{} exists and is not empty; name a new directory, or pass --replace to replace all "
        "of it",
        to.native());
  }
  const fs::path hidden =
      named.parent_path() / fmt::format(".{}.new-{}", named.filename().native(), ::getpid());
  std::error_code ec;
  fs::remove_all(hidden, ec);
  fs::create_directories(hidden, ec);
  if (ec) return Errorf(StatusCode::kInternal, "create {}: {}", hidden.native(), ec.message());
  return NewDirectory(named, hidden, replace);
}

NewDirectory::NewDirectory(NewDirectory&& other) noexcept
    : to_(std::move(other.to_)),
      hidden_(std::exchange(other.hidden_, {})),
      replace_(other.replace_) {}

NewDirectory::~NewDirectory() {
  std::error_code ec;
  if (!hidden_.empty()) fs::remove_all(hidden_, ec);
}

Status NewDirectory::Commit() {
  DW_RETURN_IF_ERROR(SyncDirectory(hidden_));
  // Rename also replaces an empty directory.
  if (::rename(hidden_.c_str(), to_.c_str()) == 0) {
    hidden_.clear();
    return SyncDirectory(to_.parent_path());
  }
  if (!replace_) return ErrnoError(fmt::format("give {} its name", to_.native()));
  if (::renameat2(AT_FDCWD, hidden_.c_str(), AT_FDCWD, to_.c_str(), RENAME_EXCHANGE) != 0) {
    DW_RETURN_IF_ERROR(ExchangeInTwoSteps());
  }
  // Remove the old directory only when the new one's name is on the disk.
  const Status synced = SyncDirectory(to_.parent_path());
  if (!synced.ok()) {
    return Annotate(synced, fmt::format("{} is in place, and the old directory is {}", to_.native(),
                                        std::exchange(hidden_, {}).native()));
  }
  std::error_code ec;
  fs::remove_all(hidden_, ec);
  if (ec) {
    return Errorf(StatusCode::kInternal, "{} is in place, but the old directory stays as {}: {}",
                  to_.native(), hidden_.native(), ec.message());
  }
  hidden_.clear();
  return absl::OkStatus();
}

Status NewDirectory::ExchangeInTwoSteps() {
  const fs::path old = fs::path(hidden_).concat("-old");
  const auto failed = [&] {
    return ErrnoError(fmt::format("put {} in the place of {}", hidden_.native(), to_.native()));
  };
  if (::rename(to_.c_str(), old.c_str()) != 0) return failed();
  if (::rename(hidden_.c_str(), to_.c_str()) != 0) {
    const Status status = failed();
    if (::rename(old.c_str(), to_.c_str()) == 0) return status;
    return Annotate(status, fmt::format("the old directory is now {}", old.native()));
  }
  hidden_ = old;
  return absl::OkStatus();
}

}  // namespace deltawire::cli
