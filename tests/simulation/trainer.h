// A trainer: makes versions and offloads them with several ranks to one or more agents, each rank a
// process of its own that may die, or stop and write on later. Resumes from older versions, rolls
// back, registers anew what a sender has lost.
// Owner: the world. Threads: one fiber drives it, ranks have their own.
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
    uint32_t ranks = 1;  ///< of each agent
    double deaths = 0;   ///< share of ranks' offloads in which it dies
    double stops = 0;    ///< ... in which it stops, and writes on when others have begun anew
    double resumes = 0;  ///< share of versions that are made from an older one
    double rollbacks = 0;
    double marks = 0.5;  ///< share of ranks that say what they have written
  };
  Trainer(Network& network, Ledger& ledger, std::vector<SenderNode*> agents,
          std::vector<std::vector<ChunkRange>> owned, const Options& options, Random random);

  /// One version, and whatever befalls it. True when every agent has published it.
  bool Step();
  /// Faults end: the next steps go through.
  void Calm();
  /// What all agents published last.
  const Content& published() const { return published_; }
  uint64_t published_version() const { return published_version_; }
  /// The side file that belongs to it, where that is known.
  const std::optional<std::string>& published_side_file() const { return published_side_file_; }
  /// An operator makes a sender's model anew: another lineage, with nothing published.
  void Replace(size_t agent);
  uint64_t publishes() const { return publishes_; }

 private:
  struct Attempt;
  bool Offload(uint64_t version, const Content& content);
  void RunRank(const std::shared_ptr<Attempt>& attempt, size_t agent, uint32_t rank);
  Status OffloadRank(Attempt& attempt, size_t agent, uint32_t rank, const std::string& self);
  Status WriteShare(Attempt& attempt, size_t agent, uint32_t rank,
                    const sender::OffloadGrant& grant);
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
  uint64_t version_ = 0;  // the last one tried
  uint64_t published_version_ = 0;
  Content published_;
  uint64_t side_number_ = 0;
  uint32_t replacing_ = 0;
  // As every agent has it; nothing while some may have an older one.
  std::optional<std::string> side_file_, published_side_file_;
  struct Version {
    uint64_t version = 0;
    Content content;
    std::optional<std::string> side_file;
  };
  std::vector<Version> history_;  // the newest at the back
};

}  // namespace deltawire::simulation
