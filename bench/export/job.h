// A Megatron job in one process, with its model, the layout that cuts it, its plan, and the shards
// of some of its ranks in memory. One caller; Run uses the pool. Errors are the plan's, and too
// little memory.
#pragma once

#include <memory>
#include <vector>

#include "bench/harness/bench.h"
#include "bench/harness/buffers.h"
#include "sender/export/mcore/transfer.h"

namespace deltawire::bench {

struct MegatronJob {
  std::string name;      ///< as in a case's name
  std::string config;    ///< config.json
  std::string parallel;  ///< the input of ParallelConfig::Parse
};

// With `tiny` each of these returns one job of some 100 KB on two ranks, as a quick check of a
// case.

/// Returns published shapes, on as many ranks as such models are trained on.
std::vector<MegatronJob> PlannedJobs(bool tiny);
/// Returns jobs of about 1 to 2.5 GB each: fewer layers and experts and a shorter vocabulary,
/// widths as published.
std::vector<MegatronJob> PlacedJobs(bool tiny);
std::vector<MegatronJob> GatheredJobs(bool tiny);

/// A plan that was proven to write every byte once, and the objects that it refers to.
class Planned {
 public:
  static StatusOr<std::unique_ptr<Planned>> Make(const MegatronJob& job);
  const mcore::Plan& plan() const { return *plan_; }

 private:
  mcore::FamilySet families_;
  std::optional<mcore::HfConfig> config_;
  std::optional<mcore::Plan> plan_;
};

/// Returns the parameters that a rank writes, as a trainer would list them.
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

  /// Fills `half` by place, then copies its parts to the shards.
  Status FillFrom(MutableBytes half) const;

  /// Return the copies between each rank's shards and a half, and run them, one rank after the
  /// other.
  StatusOr<std::vector<mcore::Transfer>> Programs(mcore::Direction direction) const;
  void Run(std::span<const mcore::Transfer> programs, mcore::Direction direction, MutableBytes half,
           ThreadPool& pool) const;

 private:
  const mcore::Plan* plan_ = nullptr;
  HugeBuffer memory_;
  std::vector<Rank> ranks_;
};

}  // namespace deltawire::bench
