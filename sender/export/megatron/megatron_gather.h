// A gather of a Megatron job's shards into HF tensors on one rank, for nodes that share no memory.
// Call it on every rank, in the same order, with the rank's own parameters. It needs at most two
// buckets of memory a rank. kFailedPrecondition, before any transfer, names parameters that no rank
// holds or several would write.
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

/// `matches` is MatchRank's result for this rank's parameters, whose dtypes are live[i].dtype.
/// `tensor` returns memory of plan.layout()'s tensors; it and `placed` are called on the root only.
/// REQUIRES: the collective's ranks are the job's.
StatusOr<GatherStats> GatherToHf(Collective& collective, const mcore::Plan& plan,
                                 std::span<const mcore::Match> matches,
                                 std::span<const mcore::LiveParam> live, const LiveBytes& bytes,
                                 const mcore::Transfer::TensorMemory& tensor, ThreadPool& pool,
                                 const GatherOptions& options = {},
                                 const mcore::Transfer::Placed& placed = {});

}  // namespace deltawire
