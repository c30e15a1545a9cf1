// A directory that appears whole or not at all: it is written under a hidden name beside its place,
// and one rename gives it its name, so that no reader finds old files beside new ones. Owner: one
// command. Threads: one. Cost: a rename. Errors name the directory and what to do.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace deltawire::cli {

class NewDirectory {
 public:
  /// `to` must not exist, or be empty; with `replace` it may contain anything except one of
  /// `sources`, which the command reads. kAlreadyExists, kInvalidArgument.
  static StatusOr<NewDirectory> Create(const std::filesystem::path& to, bool replace,
                                       const std::vector<std::filesystem::path>& sources);
  NewDirectory(NewDirectory&& other) noexcept;
  NewDirectory& operator=(NewDirectory&&) = delete;
  /// Removes the directory unless Commit succeeded.
  ~NewDirectory();

  /// The directory to write to, before Commit.
  const std::filesystem::path& path() const { return hidden_; }
  /// Renames the directory to `to`. With `replace`, the old directory is removed.
  Status Commit();

 private:
  NewDirectory(std::filesystem::path to, std::filesystem::path hidden, bool replace)
      : to_(std::move(to)), hidden_(std::move(hidden)), replace_(replace) {}

  std::filesystem::path to_, hidden_;
  bool replace_;
};

}  // namespace deltawire::cli
