// Finds the chunks of HF space that a node's ranks write, for an agent that shares a model with
// other agents. Pure function over a plan; nothing is owned. Threads: any. Cost: one pass over the
// boxes of tensors that several nodes write. Errors: kFailedPrecondition names tensors of which
// ranks of different nodes write one chunk.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/layout/coverage.h"
#include "sender/export/mcore/plan.h"

namespace deltawire::mcore {

/// `ranks`: the job's ranks on this node. Tensors that are not trained belong to rank 0. Returns
/// sorted, disjoint ranges, as Coverage requires them; none if the node's ranks write nothing.
StatusOr<std::vector<ChunkRange>> NodePart(const Plan& plan, const ChunkTable& chunks,
                                           std::span<const uint32_t> ranks);

}  // namespace deltawire::mcore
