// The lines that `publish --watch` prints about what it waits for. Each fact about a directory is
// printed once. Owner: one command. Threads: one. Cost: a few words per directory. No errors.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/checkpoints.h"

namespace deltawire::cli {

class CheckpointNews {
 public:
  /// `parent` and `inside` are those of the scanner.
  CheckpointNews(std::filesystem::path parent, std::filesystem::path inside)
      : parent_(std::move(parent)), inside_(std::move(inside)) {}

  /// The first lines: which directory is watched, for which checkpoints.
  std::vector<std::string> Begin(const std::string& model) const;
  /// The news of one scan; call it for each, in order.
  std::vector<std::string> Of(const CheckpointScanner::Found& found);
  /// The first scans leave out all complete checkpoints but the newest.
  static std::string LeftOut(const std::vector<Checkpoint>& found);

 private:
  const std::filesystem::path parent_;
  const std::filesystem::path inside_;
  int scans_ = 0;
  bool seen_any_ = false;  // a checkpoint, complete or not
  bool said_none_ = false;
  std::set<std::pair<std::string, PendingCheckpoint::Reason>> said_;
};

}  // namespace deltawire::cli
