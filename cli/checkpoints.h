// A scanner for the checkpoint directories that a training run writes. It reports when one is
// complete, and when the files of the last published one have changed since. A scan makes one stat
// call for each file of new directories and of that one. It fails only if the parent cannot be
// read.
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

/// Returns the version at the end of a checkpoint's name: "step-120", "checkpoint-500",
/// "global_step_7" or "12". nullopt: a name without trailing digits, 0, or beyond 2^64 - 1.
std::optional<uint64_t> VersionFromName(std::string_view name);

/// Returns whether `dir` itself has a *.safetensors file.
bool HoldsWeights(const std::filesystem::path& dir);

struct Checkpoint {
  std::filesystem::path path;  ///< directory of the weights: <parent>/<name>/<inside>
  uint64_t version = 0;
  bool old = false;    ///< existed at the first Scan
  bool again = false;  ///< its files have changed since it was published
};

struct PendingCheckpoint {
  enum class Reason : uint8_t {
    kNoWeights,      ///< no *.safetensors file in two scans
    kBeingWritten,   ///< a file has changed lately
    kShardsMissing,  ///< fewer files than their names promise
    kUnreadable,     ///< the files do not make a model; `detail` says why
  };
  std::string name;  ///< of the directory below the parent
  Reason reason = Reason::kNoWeights;
  std::string detail;  ///< of kShardsMissing and kUnreadable
};

class CheckpointScanner {
 public:
  /// `inside` is the path of the weights within each checkpoint directory, often empty.
  CheckpointScanner(std::filesystem::path parent, std::filesystem::path inside);

  struct Found {
    std::vector<Checkpoint> complete;        ///< by rising version; repeated after changes
    std::vector<std::string> unnamed;        ///< directories with weights but no version; once each
    std::vector<PendingCheckpoint> pending;  ///< by name; reported again in each scan
  };
  /// Returns the complete and the pending checkpoints. A checkpoint is complete when every
  /// safetensors file is as long as its header says, all shards exist, and nothing has changed
  /// since the previous Scan. If one changes after it was published, it must stay unchanged for
  /// twice as many scans as the time before, up to 32.
  StatusOr<Found> Scan();
  /// Records that the checkpoint was published, in place of the one before. If the files that make
  /// up the model change after its Scan, a later Scan reports it again.
  void Published(const Checkpoint& reported);
  /// Returns whether the files of an unpublished checkpoint have changed since its report. If so, a
  /// later Scan reports it again.
  bool ChangedSince(const Checkpoint& reported);

 private:
  struct Seen {
    std::string files;    // names, sizes and times of all files, from the previous Scan
    std::string content;  // the same for the model's files, when it was reported
    int quiet = 0;        // scans since a file changed
    int needed = 1;
    bool reported = false;
    bool old = false;
    bool again = false;
  };
  /// Forgets the report if the published checkpoint has changed.
  void LookAgain(const std::string& name, const std::filesystem::path& dir, Seen& seen);

  const std::filesystem::path parent_;
  const std::filesystem::path inside_;
  bool first_ = true;
  std::map<std::string, Seen> seen_;  // by directory name
  std::set<std::string> unnamed_;
  std::string published_;                  // the name of the last published one; empty: none
  std::map<uint64_t, std::string> names_;  // of reported checkpoints, by version
};

}  // namespace deltawire::cli
