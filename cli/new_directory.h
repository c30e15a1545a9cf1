// A directory that appears whole or not at all: it is written under a hidden name beside its place,
// and a rename gives it its name, so that no reader finds old files beside new ones. Whoever writes
// the files brings them to the disk. Owner: one command. Threads: one. Cost: a rename. Errors name
// the directory and what to do.
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
  /// Brings the directory's names to the disk and renames it to `to`. With `replace` it changes
  /// places with the old directory, which is then removed. On a filesystem that cannot exchange two
  /// names (NFS, for one) there is nothing called `to` for a moment; whoever is killed just then
  /// leaves both directories beside it, the old one as ".NAME.new-PID-old".
  Status Commit();

 private:
  Status ExchangeInTwoSteps();
  NewDirectory(std::filesystem::path to, std::filesystem::path hidden, bool replace)
      : to_(std::move(to)), hidden_(std::move(hidden)), replace_(replace) {}

  std::filesystem::path to_, hidden_;
  bool replace_;
};

}  // namespace deltawire::cli
