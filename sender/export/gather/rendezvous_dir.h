// A directory that all ranks of a trainer see, in which they leave one another small entries.
// Owner: one rank's Collective. Threads: one caller. Cost: a file an entry; waiting polls (over
// NFS, an entry may be seen late: mount with lookupcache=positive). Entries are written once,
// appear whole, and stay. Errors: those of the file system, with the path.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace deltawire {

class RendezvousDir {
 public:
  /// `where` is "file:DIR" with DIR there already; entries go to DIR/`job`, which is one path
  /// component of letters, digits, '.', '_' and '-'. kInvalidArgument if they are not.
  static StatusOr<RendezvousDir> Open(const std::string& where, const std::string& job);

  /// kAlreadyExists if the entry is there: the job's name was used before.
  Status Set(const std::string& key, std::span<const char> value);

  /// The values of all keys, in order. kDeadlineExceeded with the first of those that are missing.
  StatusOr<std::vector<std::string>> WaitForAll(const std::vector<std::string>& keys,
                                                std::chrono::steady_clock::time_point deadline);

  /// The entry, if it is there now.
  std::optional<std::string> Find(const std::string& key) const;

 private:
  explicit RendezvousDir(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
};

}  // namespace deltawire
