// Streams buckets of bytes from all ranks to the root: the next arrives while one is consumed.
// Call on every rank with the same plan. Threads: the caller's. Memory: at most two buckets a rank,
// whatever the plan's size. Cost: one copy on a rank that gives several pieces to a bucket, none
// for a single one or for the root's own. Errors: the first of any rank ends it on all and, but for
// plans that differ or cannot be, breaks the collective.
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

/// The whole of an item of this rank, final and readable until GatherBuckets returns.
using GatherSource = std::function<StatusOr<Bytes>(uint64_t item)>;

/// On the root, for each bucket in order: `pieces[i]` are the bytes of plan[bucket][i], aligned to
/// kGatherAlignment unless they are the root's own memory; valid during the call.
using GatherConsumer = std::function<Status(size_t bucket, std::span<const Bytes> pieces)>;

/// The two buckets' memory, kept from one gather to the next by those who gather often.
struct GatherBuffers {
  std::array<std::unique_ptr<CollectiveBuffer>, 2> buckets;
};

struct GatherOptions {
  /// Every bucket of the plan holds at most this much: what MakeBuckets was given.
  uint64_t bucket_bytes = kDefaultBucketBytes;
  /// For the whole.
  Collective::Deadline deadline = Collective::Deadline::max();
  /// For each wait within: a bucket's transfer, with the root's work on the one before.
  std::chrono::milliseconds wait_timeout = std::chrono::minutes(2);
  GatherBuffers* buffers = nullptr;
};

struct GatherStats {
  uint64_t buckets = 0;
  uint64_t network_bytes = 0;      // received on the root, sent elsewhere; padding included
  uint64_t own_bytes = 0;          // of the root, which did not travel
  uint64_t staged_bytes = 0;       // copied on this rank
  uint64_t peak_buffer_bytes = 0;  // of both buckets' memory together, at the worst moment
  uint64_t bucket_bytes = 0;       // as agreed, where the caller had that done
  double wait_seconds = 0;         // for transfers
  double consume_seconds = 0;      // root only
};

/// Returns OK on every rank only when the root has consumed every bucket. `consume` is called on
/// the root only, `source` for this rank's items only. Errors: kFailedPrecondition when the plans
/// of some ranks, which it names, differ from the root's (before the first byte; all ranks get it,
/// and the collective stays usable); kInvalidArgument for a plan that breaks bucket_bytes or names
/// a rank that there is not, on every rank; what source or consume returned; the collective's.
StatusOr<GatherStats> GatherBuckets(Collective& collective, std::span<const GatherBucket> plan,
                                    const GatherSource& source, const GatherConsumer& consume,
                                    const GatherOptions& options = {});

}  // namespace deltawire
