// A directory that appears whole or not at all. It is written under a hidden name beside its place,
// and a rename gives it its name, so that no reader finds old files beside new ones. The caller
// syncs the files in it to the disk. Errors name the directory and the remedy.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace deltawire::cli {

class NewDirectory {
 public:
  /// Creates the hidden directory. `to` must not exist, or be empty. With `replace` it may contain
  /// anything except one of `sources`, which the command reads. Fails with kAlreadyExists or
  /// kInvalidArgument.
  static StatusOr<NewDirectory> Create(const std::filesystem::path& to, bool replace,
                                       const std::vector<std::filesystem::path>& sources);
  NewDirectory(NewDirectory&& other) noexcept;
  NewDirectory& operator=(NewDirectory&&) = delete;
  /// Removes the directory unless Commit succeeded.
  ~NewDirectory();

  /// The directory to write to, before Commit.
  const std::filesystem::path& path() const { return hidden_; }
  /// Syncs the directory's names to the disk and renames it to `to`. With `replace`, it swaps with
  /// the old directory, which is then removed. On a filesystem that cannot swap two names (such as
  /// NFS), `to` does not exist for a moment. A process that is killed in that moment leaves both
  /// directories beside `to`, the old one as ".NAME.new-PID-old".
  Status Commit();

 private:
  Status ExchangeInTwoSteps();
  NewDirectory(std::filesystem::path to, std::filesystem::path hidden, bool replace)
      : to_(std::move(to)), hidden_(std::move(hidden)), replace_(replace) {}

  std::filesystem::path to_, hidden_;
  bool replace_;
};

}  // namespace deltawire::cli
