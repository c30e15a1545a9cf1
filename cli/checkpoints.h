// Finds checkpoint directories that a training run writes, and tells when one is complete. Owner:
// `publish --watch`. Threads: one. Cost of a Scan: one stat per file of new directories. Errors:
// only for a parent that cannot be read; an incomplete checkpoint is reported as pending.
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

/// The version at the end of a checkpoint's name: "step-120", "checkpoint-500", "global_step_7" or
/// "12". nullopt for a name without trailing digits, for 0, and beyond 2^64 - 1.
std::optional<uint64_t> VersionFromName(std::string_view name);

/// Whether `dir` itself has a *.safetensors file.
bool HoldsWeights(const std::filesystem::path& dir);

struct Checkpoint {
  std::filesystem::path path;  ///< directory of the weights: <parent>/<name>/<inside>
  uint64_t version = 0;
};

/// A directory that is not a complete checkpoint yet.
struct PendingCheckpoint {
  enum class Reason : uint8_t {
    kNoWeights,      ///< no *.safetensors file in two scans
    kBeingWritten,   ///< a file has changed since the scan before
    kShardsMissing,  ///< fewer files than their names promise
    kUnreadable,     ///< the files do not make a model; `detail` says why
  };
  std::string name;  ///< of the directory below the parent
  Reason reason = Reason::kNoWeights;
  std::string detail;  ///< of kShardsMissing and kUnreadable
};

class CheckpointScanner {
 public:
  /// `inside`: path of the weights within each checkpoint directory, often empty.
  CheckpointScanner(std::filesystem::path parent, std::filesystem::path inside);

  struct Found {
    std::vector<Checkpoint> complete;        ///< by rising version; each is reported once
    std::vector<std::string> unnamed;        ///< directories with weights but no version; once each
    std::vector<PendingCheckpoint> pending;  ///< by name; in each scan for as long as it holds
  };
  /// A checkpoint is complete when every safetensors file is as long as its header says, all shards
  /// exist, and nothing has changed since the previous Scan.
  StatusOr<Found> Scan();
  /// Whether the files of a reported checkpoint have changed since; if so, a later Scan reports it
  /// again.
  bool ChangedSince(const Checkpoint& reported);

 private:
  const std::filesystem::path parent_;
  const std::filesystem::path inside_;
  std::map<std::string, std::string> signatures_;  // by directory name, from the previous Scan
  std::set<std::string> done_;
  std::map<uint64_t, std::pair<std::string, std::string>> reported_;  // version: name, signature
};

}  // namespace deltawire::cli
