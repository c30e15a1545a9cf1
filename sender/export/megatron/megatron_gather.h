// Gathers a Megatron job's shards into HF tensors on one rank, for nodes that share no memory. Call
// it on every rank, in the same order, with the rank's own parameters. Owner: the caller, of
// everything. Threads: the caller's, and the pool's on the root. Cost: at most two buckets of
// memory a rank. Errors: as GatherBuckets; before the first byte, kFailedPrecondition names
// parameters that no rank holds or several would write.
#pragma once

#include <functional>
#include <span>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "sender/export/gather/gather.h"
#include "sender/export/mcore/transfer.h"

namespace deltawire {

/// Returns the bytes of a rank's parameter number `live` (Match::live), whole and row-major.
using LiveBytes = std::function<Bytes(size_t live)>;

/// `matches`: MatchRank's result for this rank's parameters; their dtypes are live[i].dtype.
/// `tensor` returns memory of plan.layout()'s tensors; it and `placed` are called on the root only.
/// REQUIRES: the collective's ranks are the job's.
StatusOr<GatherStats> GatherToHf(Collective& collective, const mcore::Plan& plan,
                                 std::span<const mcore::Match> matches,
                                 std::span<const mcore::LiveParam> live, const LiveBytes& bytes,
                                 const mcore::Transfer::TensorMemory& tensor, ThreadPool& pool,
                                 const GatherOptions& options = {},
                                 const mcore::Transfer::Placed& placed = {});

}  // namespace deltawire
