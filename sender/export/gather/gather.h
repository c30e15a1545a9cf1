// A gather of buckets of bytes from all ranks to the root: while one is consumed, the next arrives.
// Call it on every rank with the same plan. It needs at most two buckets of memory a rank. It
// copies only if a rank other than the root gives several pieces to a bucket. Any rank's first
// error ends the gather on all and breaks the collective, except for a plan that differs or is
// invalid.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "sender/export/gather/collective.h"
#include "sender/export/gather/gather_plan.h"

namespace deltawire {

inline constexpr uint64_t kDefaultBucketBytes = 512ULL << 20;

/// Returns all bytes of an item of this rank: final, and readable until GatherBuckets returns.
using GatherSource = std::function<StatusOr<Bytes>(uint64_t item)>;

/// Called on the root for each bucket in order. `pieces[i]` are the bytes of plan[bucket][i],
/// aligned to kGatherAlignment unless they are the root's own memory; valid during the call.
using GatherConsumer = std::function<Status(size_t bucket, std::span<const Bytes> pieces)>;

/// The two buckets' memory, for callers that gather often and keep it between gathers.
struct GatherBuffers {
  std::array<std::unique_ptr<CollectiveBuffer>, 2> buckets;
};

struct GatherOptions {
  /// The limit of every bucket in the plan, as given to MakeBuckets.
  uint64_t bucket_bytes = kDefaultBucketBytes;
  /// The deadline of the whole gather.
  Collective::Deadline deadline = Collective::Deadline::max();
  /// The limit of each wait: a bucket's transfer, and the root's work on the bucket before.
  std::chrono::milliseconds wait_timeout = std::chrono::minutes(2);
  GatherBuffers* buffers = nullptr;
};

struct GatherStats {
  uint64_t buckets = 0;
  uint64_t network_bytes = 0;      // received on the root, sent elsewhere; padding included
  uint64_t own_bytes = 0;          // the root's own bytes, which are not sent
  uint64_t staged_bytes = 0;       // copied on this rank
  uint64_t peak_buffer_bytes = 0;  // peak memory of both buckets together
  uint64_t bucket_bytes = 0;       // as agreed, if AgreeBucketBytes was called
  double wait_seconds = 0;         // for transfers
  double consume_seconds = 0;      // root only
};

/// Returns OK on every rank only when the root has consumed every bucket. Calls `consume` on the
/// root only, `source` for this rank's items only. kFailedPrecondition, on all ranks and before any
/// transfer, names the ranks whose plans differ from the root's; kInvalidArgument, on every rank,
/// is a plan that exceeds bucket_bytes or names an unknown rank. Both leave the collective usable.
/// Other errors come from `source`, `consume` and the collective.
StatusOr<GatherStats> GatherBuckets(Collective& collective, std::span<const GatherBucket> plan,
                                    const GatherSource& source, const GatherConsumer& consume,
                                    const GatherOptions& options = {});

}  // namespace deltawire
