// The chunks of HF space that a node's ranks write, for an agent that shares a model with other
// agents. kFailedPrecondition names tensors in which ranks of different nodes write one chunk.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/layout/coverage.h"
#include "sender/export/mcore/plan.h"

namespace deltawire::mcore {

/// `ranks` are the job's ranks on this node. Untrained tensors belong to rank 0. Returns sorted,
/// disjoint ranges, as Coverage requires them, or none if the node's ranks write nothing.
StatusOr<std::vector<ChunkRange>> NodePart(const Plan& plan, const ChunkTable& chunks,
                                           std::span<const uint32_t> ranks);

}  // namespace deltawire::mcore
