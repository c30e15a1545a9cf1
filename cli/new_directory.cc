#include "cli/new_directory.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

namespace deltawire::cli {
namespace {

namespace fs = std::filesystem;

bool IsIn(const fs::path& inner, const fs::path& outer) {
  std::error_code ec;
  const fs::path a = fs::weakly_canonical(inner, ec), b = fs::weakly_canonical(outer, ec);
  return std::mismatch(b.begin(), b.end(), a.begin(), a.end()).first == b.end();
}

/// Whether `path` does not exist, or is an empty directory.
bool IsFree(const fs::path& path) {
  std::error_code ec;
  if (!fs::exists(fs::symlink_status(path, ec))) return true;
  return fs::is_directory(path, ec) && fs::is_empty(path, ec) && !ec;
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
    return Errorf(StatusCode::kAlreadyExists,
                  "{} is there and not empty: name a new directory, or say --replace to have all "
                  "of it replaced",
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
  // Rename also replaces an empty directory.
  if (::rename(hidden_.c_str(), to_.c_str()) == 0) {
    hidden_.clear();
    return absl::OkStatus();
  }
  if (!replace_) return ErrnoError(fmt::format("give {} its name", to_.native()));
  if (::renameat2(AT_FDCWD, hidden_.c_str(), AT_FDCWD, to_.c_str(), RENAME_EXCHANGE) != 0) {
    // This filesystem cannot exchange names, so for a moment the name does not exist.
    const fs::path old = fs::path(hidden_).concat("-old");
    if (::rename(to_.c_str(), old.c_str()) != 0 || ::rename(hidden_.c_str(), to_.c_str()) != 0) {
      return ErrnoError(fmt::format("put {} in the place of {}", hidden_.native(), to_.native()));
    }
    hidden_ = old;
  }
  std::error_code ec;
  fs::remove_all(hidden_, ec);
  if (ec) {
    return Errorf(StatusCode::kInternal,
                  "{} is in place, but what was there before stays as {}: {}", to_.native(),
                  hidden_.native(), ec.message());
  }
  hidden_.clear();
  return absl::OkStatus();
}

}  // namespace deltawire::cli
