// Which chunks of HF space a node's ranks write: what its agent owns where several share a model.
// Pure function over a plan. Errors: kFailedPrecondition names tensors of which ranks of different
// nodes write one chunk. Cost: one pass over the boxes of tensors that several nodes write.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/layout/coverage.h"
#include "sender/export/mcore/plan.h"

namespace deltawire::mcore {

/// `ranks`: those of the job that are on the node. Tensors that are not trained are rank 0's.
/// Ranges are as Coverage wants them; none at all where the node's ranks write nothing.
StatusOr<std::vector<ChunkRange>> NodePart(const Plan& plan, const ChunkTable& chunks,
                                           std::span<const uint32_t> ranks);

}  // namespace deltawire::mcore
