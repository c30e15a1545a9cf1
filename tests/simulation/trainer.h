// A trainer: a job of ranks, each a process with a client of its own, that makes versions and
// offloads them to one or more agents. Ranks may die, at any step or at the worst ones, and the job
// is then started anew; or stop, and write on later. It resumes from older versions, rolls back,
// changes its layout, and registers a model anew that a sender has lost. One fiber drives it, each
// rank has its own. Errors: Step returns false; Scheduler::Fail for what a sender must not do.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/layout/coverage.h"
#include "tests/simulation/ledger.h"
#include "tests/simulation/rank_client.h"
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
    double marks = 0.5;    ///< share of ranks' offloads that tell of chunks as they are written
    double ahead = 0;      ///< share of steps in which ranks begin a version before they wait
    double unchanged = 0;  ///< share of tensors that did not change, and are declared so
    double layouts = 0;    ///< share of steps before which the layout changes
    bool hears_deaths = false;                ///< the kernel tells of a rank's death at once
    Time timeout = std::chrono::seconds(10);  ///< of a rank's calls
    Time patience = std::chrono::seconds(3);  ///< with a stopped rank, before the job starts anew
  };
  /// `owned`: each agent's share of the layout that the ledger has.
  Trainer(Network& network, Ledger& ledger, std::vector<SenderNode*> agents, const Options& options,
          Random random);

  /// Makes and offloads one version or more, with their faults. True when every agent has
  /// published the last.
  bool Step();
  /// Ends the faults: the next steps succeed. Ends the job that runs. `writes_all`: the next ones
  /// declare nothing unchanged, since a sender cannot heal what rotted in its memory.
  void Calm(bool writes_all);
  /// The content that all agents published last.
  const Content& published() const { return published_; }
  uint64_t published_version() const { return published_version_; }
  /// The side file of the published version, if known.
  const std::optional<std::string>& published_side_file() const { return published_side_file_; }
  /// Acts as an operator who replaces a sender's model: another lineage, with nothing published.
  void Replace(size_t agent);
  uint64_t publishes() const { return publishes_; }
  /// The chunks of the present layout that an agent owns.
  Coverage owned(size_t agent) const;

 private:
  struct Rank;
  struct Attempt;
  void DrawShares();
  void StartJob();
  bool ChangeLayout();
  void PlanSteps(Attempt& attempt);
  bool Offload(const std::shared_ptr<Attempt>& attempt);
  void RunRank(const std::shared_ptr<Attempt>& attempt, size_t index);
  Status RunVersions(Attempt& attempt, size_t index);
  Status OffloadVersion(Attempt& attempt, size_t index, size_t n);
  Status WriteShare(Attempt& attempt, size_t index, size_t n, const RankClient::Offload& offload);
  /// Reports what `notice` holds, and empties it.
  void Mark(RankClient& client, const RankClient::Offload& offload, sender::WrittenNotice& notice);
  void AfterFailure(const Attempt& attempt);
  /// Checks that a rank hears soon of another one's death.
  void CheckHears(Attempt& attempt);
  StatusOr<Identity> Register(size_t agent, bool replace);
  void ChangeSideFile();
  bool RollBack();

  Network& network_;
  Ledger& ledger_;
  const std::vector<SenderNode*> agents_;
  std::vector<std::vector<ChunkRange>> owned_;
  Options options_;
  Random random_;
  std::vector<std::shared_ptr<Rank>> ranks_;  // by agent, then rank
  uint64_t job_ = 0, clients_ = 0;
  uint64_t registrations_ = 0;  // with which another model may have taken the name
  bool calm_ = false;
  bool stepping_ = false;
  std::vector<bool> has_layout_;  // by agent
  uint64_t publishes_ = 0;
  uint64_t version_ = 0;  // the last version tried
  bool again_ = false;    // the last version's number is tried again, by another start of the job
  uint64_t published_version_ = 0;
  Content published_;
  bool sure_ = false;  // nothing has failed since, so every agent has `published_`
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
