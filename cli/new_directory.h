// A directory that comes into being whole or not at all: it is written hidden beside its place, and
// gets its name by one rename, so that no reader finds old files beside new ones.
// Owner: one command. Threads: one. Errors name the directory and what to do.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace deltawire::cli {

class NewDirectory {
 public:
  /// `to` must not be there, or be empty; with `replace` it may hold anything but one of `sources`
  /// (what the command reads). kAlreadyExists, kInvalidArgument.
  static StatusOr<NewDirectory> Create(const std::filesystem::path& to, bool replace,
                                       const std::vector<std::filesystem::path>& sources);
  NewDirectory(NewDirectory&& other) noexcept;
  NewDirectory& operator=(NewDirectory&&) = delete;
  /// Without Commit nothing is left.
  ~NewDirectory();

  /// To be written to.
  const std::filesystem::path& path() const { return hidden_; }
  /// Gives it its name. What was there with `replace` goes.
  Status Commit();

 private:
  NewDirectory(std::filesystem::path to, std::filesystem::path hidden, bool replace)
      : to_(std::move(to)), hidden_(std::move(hidden)), replace_(replace) {}

  std::filesystem::path to_, hidden_;
  bool replace_;
};

}  // namespace deltawire::cli
