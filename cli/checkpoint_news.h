// The lines that `publish --watch` prints about the checkpoints that it waits for. Each fact about
// a directory is printed once.
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
  /// `parent` and `inside` are the scanner's.
  CheckpointNews(std::filesystem::path parent, std::filesystem::path inside)
      : parent_(std::move(parent)), inside_(std::move(inside)) {}

  /// Returns the first lines, which name the watched directory and the expected checkpoints.
  std::vector<std::string> Begin(const std::string& model) const;
  /// Returns the news of one scan. Call it for each scan, in order.
  std::vector<std::string> Of(const CheckpointScanner::Found& found);
  /// Returns the line for the first scans, which leave out all complete checkpoints but the newest.
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
