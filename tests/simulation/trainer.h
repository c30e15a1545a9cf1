// A trainer: makes versions and offloads them with several ranks to one or more agents, each rank a
// process of its own that may die, or stop and write on later. It resumes from older versions,
// rolls back, and registers a model anew that a sender has lost. Owner: the world. Threads: one
// fiber drives it, each rank has its own. Cost: a process per rank and version. Errors: Step
// returns false.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/layout/coverage.h"
#include "tests/simulation/ledger.h"
#include "tests/simulation/sender_node.h"

namespace deltawire::simulation {

inline constexpr const char* kModel = "m";
inline constexpr const char* kSideFile = "config.json";

class Trainer {
 public:
  struct Options {
    uint32_t ranks = 1;  ///< per agent
    double deaths = 0;   ///< share of ranks' offloads in which the rank dies
    double stops = 0;    ///< ... in which it stops, and writes on after others have begun anew
    double resumes = 0;  ///< share of versions that are made from an older one
    double rollbacks = 0;
    double marks = 0.5;  ///< share of ranks' offloads that tell of chunks as they are written
  };
  Trainer(Network& network, Ledger& ledger, std::vector<SenderNode*> agents,
          std::vector<std::vector<ChunkRange>> owned, const Options& options, Random random);

  /// Makes and offloads one version, with its faults. True when every agent has published it.
  bool Step();
  /// Ends the faults: the next steps succeed.
  void Calm();
  /// The content that all agents published last.
  const Content& published() const { return published_; }
  uint64_t published_version() const { return published_version_; }
  /// The side file of the published version, if known.
  const std::optional<std::string>& published_side_file() const { return published_side_file_; }
  /// Acts as an operator who replaces a sender's model: another lineage, with nothing published.
  void Replace(size_t agent);
  uint64_t publishes() const { return publishes_; }

 private:
  struct Attempt;
  bool Offload(uint64_t version, const Content& content);
  void RunRank(const std::shared_ptr<Attempt>& attempt, size_t agent, uint32_t rank);
  Status OffloadRank(Attempt& attempt, size_t agent, uint32_t rank, const std::string& self);
  Status WriteShare(Attempt& attempt, size_t agent, uint32_t rank, const std::string& self,
                    const sender::OffloadGrant& grant);
  /// Reports what `notice` holds, and empties it.
  void Mark(size_t agent, const std::string& self, uint64_t lease, sender::WrittenNotice& notice);
  bool Register(size_t agent, bool replace);
  void ChangeSideFile();
  bool RollBack();

  Network& network_;
  Ledger& ledger_;
  const std::vector<SenderNode*> agents_;
  const std::vector<std::vector<ChunkRange>> owned_;
  Options options_;
  Random random_;
  uint64_t processes_ = 0;
  uint64_t publishes_ = 0;
  uint64_t version_ = 0;  // the last version tried
  uint64_t published_version_ = 0;
  Content published_;
  uint64_t side_number_ = 0;
  uint32_t replacing_ = 0;
  // The side file that every agent has; nullopt while some may have an older one.
  std::optional<std::string> side_file_, published_side_file_;
  struct Version {
    uint64_t version = 0;
    Content content;
    std::optional<std::string> side_file;
  };
  std::vector<Version> history_;  // the newest at the back
};

}  // namespace deltawire::simulation
