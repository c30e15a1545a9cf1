// A copier of a rank's live parameters to their HF places, or back, by the plan's programs. Nothing
// is written before all parameters are matched. The memory outlives Run, which uses the pool.
// Errors name the parameter, the expected value and the remedy.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "sender/export/mcore/plan.h"

namespace deltawire::mcore {

/// A parameter or persistent buffer as the trainer lists it. Row-major.
struct LiveParam {
  uint32_t chunk = 0;  ///< virtual pipeline chunk
  std::string name;    ///< wrappers' prefixes are stripped
  DType dtype = DType::kBF16;
  std::vector<uint64_t> shape;
};

/// Returns the element type for conversions, or kBytes for dtypes that are only moved.
kernels::Element ElementOf(DType dtype);

/// One step of a program: a box of tensor `tensor`. The copy's destination offset counts from the
/// tensor's first byte.
struct Step {
  uint32_t tensor = 0;
  kernels::StridedCopy copy;
  kernels::Convert convert;
};

enum class Direction : uint8_t { kToHf, kFromHf };

/// Returns the steps of one shard, or of its rows `only`, which are then at the source's beginning.
/// `exact` means that HF's narrower dtype is known to hold the trainer's values. kInvalidArgument:
/// the trainer's dtype has values that HF's lacks.
StatusOr<std::vector<Step>> StepsOf(const Plan& plan, const ShardParam& shard, DType dtype,
                                    Split split, Direction direction, RowRange only = {},
                                    bool exact = false);

/// A live parameter and the plan's shard for it.
struct Match {
  size_t live = 0;  ///< index into the list that was matched
  ShardParam shard;
  Split split = Split::kNone;
};

/// Finds every parameter of `rank` among `live`. Errors list missing and unknown parameters and
/// those of another shape or dtype (up to ten by name).
StatusOr<std::vector<Match>> MatchRank(const Plan& plan, uint32_t rank,
                                       std::span<const LiveParam> live);

/// Collects steps, and runs them on a pool in pieces of about equal size.
class Transfer {
 public:
  using TensorMemory = std::function<MutableBytes(uint32_t tensor)>;
  /// Called for each step when all its bytes are in place, on the thread that finished it.
  using Placed = std::function<void(const Step& step)>;

  /// Adds steps of one shard. `shard` outlives Run, which writes to it for kFromHf.
  void Add(std::vector<Step> steps, MutableBytes shard);
  uint64_t bytes() const { return bytes_; }
  void Run(Direction direction, const TensorMemory& tensor, ThreadPool& pool,
           const Placed& placed = {}) const;

 private:
  struct Item {
    Step step;
    MutableBytes shard;
  };
  std::vector<Item> items_;
  uint64_t bytes_ = 0;
};

}  // namespace deltawire::mcore
