// Finds checkpoint directories that a training run writes, and tells when one is complete.
// Owner: `publish --watch`. One thread. Cost of a Scan: one stat per file of new directories.
// Errors: only for a parent that cannot be read; an incomplete checkpoint is just not there yet.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace deltawire::cli {

/// The version that a checkpoint's name ends in: "step-120", "checkpoint-500", "global_step_7" or
/// "12". Nothing for a name without trailing digits, for 0, and beyond 2^64 - 1.
std::optional<uint64_t> VersionFromName(std::string_view name);

struct Checkpoint {
  std::filesystem::path path;  ///< of the weights: <parent>/<name>/<inside>
  uint64_t version = 0;
};

class CheckpointScanner {
 public:
  /// `inside` is where the weights lie in each checkpoint directory, often empty.
  CheckpointScanner(std::filesystem::path parent, std::filesystem::path inside);

  struct Found {
    std::vector<Checkpoint> complete;  ///< by rising version; each is reported once
    std::vector<std::string> unnamed;  ///< directories with weights but no version; once each
  };
  /// A checkpoint is complete when every safetensors file is as long as its header says, all shards
  /// are there, and nothing has changed since the Scan before.
  StatusOr<Found> Scan();
  /// Whether the files of a checkpoint that was reported are others now; then a later Scan reports
  /// it once more.
  bool ChangedSince(const Checkpoint& reported);

 private:
  const std::filesystem::path parent_;
  const std::filesystem::path inside_;
  std::map<std::string, std::string> signatures_;  // by directory name, of the Scan before
  std::set<std::string> done_;
  std::map<uint64_t, std::pair<std::string, std::string>> reported_;  // version: name, signature
};

}  // namespace deltawire::cli
