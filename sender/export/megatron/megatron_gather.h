// Takes a Megatron job's shards to HF tensors on one rank, for nodes that share no memory.
// Call on every rank, in the same order, with its own live parameters. Threads: the caller's, and
// the pool's on the root. Memory: at most two buckets a rank. Errors: as GatherBuckets; before the
// first byte, kFailedPrecondition names what no rank holds or what several would write.
#pragma once

#include <functional>
#include <span>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "sender/export/gather/gather.h"
#include "sender/export/mcore/transfer.h"

namespace deltawire {

/// The bytes of a rank's live parameter `live` (Match::live), whole and row-major.
using LiveBytes = std::function<Bytes(size_t live)>;

/// `matches`: what MatchRank found among this rank's parameters, of dtypes live[i].dtype.
/// `tensor` gives memory of plan.layout()'s tensors; it and `placed` are called on the root only.
/// REQUIRES: the collective's ranks are the job's.
StatusOr<GatherStats> GatherToHf(Collective& collective, const mcore::Plan& plan,
                                 std::span<const mcore::Match> matches,
                                 std::span<const mcore::LiveParam> live, const LiveBytes& bytes,
                                 const mcore::Transfer::TensorMemory& tensor, ThreadPool& pool,
                                 const GatherOptions& options = {},
                                 const mcore::Transfer::Placed& placed = {});

}  // namespace deltawire
