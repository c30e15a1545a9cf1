// Megatron jobs: models with the layouts that cut them, and such a job in one process: its plan,
// and the shards of some of its ranks in memory.
// Owner: a case. Threads: one caller; Run uses the pool. Errors: the plan's, and memory.
#pragma once

#include <memory>
#include <vector>

#include "bench/harness/bench.h"
#include "bench/harness/buffers.h"
#include "sender/export/mcore/transfer.h"

namespace deltawire::bench {

struct MegatronJob {
  std::string name;      ///< as it stands in a case's name
  std::string config;    ///< config.json
  std::string parallel;  ///< as ParallelConfig::Parse takes it
};

// With `tiny` each of these returns one job of some 100 KB on two ranks, to see that a case works.

/// Published shapes, on as many ranks as such models are trained on.
std::vector<MegatronJob> PlannedJobs(bool tiny);
/// About 1 to 2.5 GB each: fewer layers and experts and a shorter vocabulary, widths as published.
std::vector<MegatronJob> PlacedJobs(bool tiny);
/// Jobs of two ranks.
std::vector<MegatronJob> GatheredJobs(bool tiny);

/// A plan that was proven to write every byte once, and what the plan refers to.
class Planned {
 public:
  static StatusOr<std::unique_ptr<Planned>> Make(const MegatronJob& job);
  const mcore::Plan& plan() const { return *plan_; }

 private:
  mcore::FamilySet families_;
  std::optional<mcore::HfConfig> config_;
  std::optional<mcore::Plan> plan_;
};

/// The parameters that a rank writes, as a trainer would list them.
std::vector<mcore::Match> WrittenBy(const mcore::Plan& plan, uint32_t rank);

/// The shards that some ranks write, rank after rank in one buffer. The plan must outlive them.
class Shards {
 public:
  static StatusOr<Shards> Make(const mcore::Plan& plan, const std::vector<uint32_t>& ranks);

  Bytes data() const { return memory_.data(); }
  /// A rank's parameters, as the plan and as a trainer lists them, and their bytes.
  struct Rank {
    std::vector<mcore::Match> matches;
    std::vector<mcore::LiveParam> live;
    std::vector<MutableBytes> data;
  };
  const Rank& rank(size_t i) const { return ranks_[i]; }

  /// Fills `half` by place, then copies what belongs to each shard from it.
  Status FillFrom(MutableBytes half) const;

  /// The copies between each rank's shards and a half; and runs them, one rank after the other.
  StatusOr<std::vector<mcore::Transfer>> Programs(mcore::Direction direction) const;
  void Run(std::span<const mcore::Transfer> programs, mcore::Direction direction, MutableBytes half,
           ThreadPool& pool) const;

 private:
  const mcore::Plan* plan_ = nullptr;
  HugeBuffer memory_;
  std::vector<Rank> ranks_;
};

}  // namespace deltawire::bench
