// A directory that all ranks of a trainer see, in which they leave one another small entries.
// Entries are written once, appear whole, and stay. Waits poll; over NFS an entry may be seen late,
// so mount with lookupcache=positive. Errors are the file system's, with the path.
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
  /// `where` is "file:DIR", and DIR exists. Entries go to DIR/`job`, one path component of letters,
  /// digits, '.', '_' and '-'. Other arguments are kInvalidArgument.
  static StatusOr<RendezvousDir> Open(const std::string& where, const std::string& job);

  /// kAlreadyExists if the entry exists: an earlier group has used the job's name.
  Status Set(const std::string& key, std::span<const char> value);

  /// Returns the values of all keys, in order. kDeadlineExceeded names the first missing keys.
  StatusOr<std::vector<std::string>> WaitForAll(const std::vector<std::string>& keys,
                                                std::chrono::steady_clock::time_point deadline);

  std::optional<std::string> Find(const std::string& key) const;

 private:
  explicit RendezvousDir(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
};

}  // namespace deltawire
