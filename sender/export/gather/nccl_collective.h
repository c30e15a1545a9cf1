// Collective over NCCL: from device memory to device memory, and on the root on to pinned memory.
// Small messages and last words stay with another Collective. Not run on devices yet.
// Threads: one caller. Memory on the root: each buffer twice, on the device and on the host.
// Errors: as Collective; NCCL does not name ranks, and one that it does not miss by itself is
// missed at the deadline. Built without CUDA or NCCL, there is only the error.
#pragma once

#include <memory>

#include "common/base/status.h"
#include "sender/export/gather/collective.h"

namespace deltawire {

/// `control` connects the same ranks (NewGlooCollective); rank, size and root are its own. `device`
/// is this process's CUDA device, another one for each rank of a machine. Sources may be in device
/// memory, where all work on them must be complete, or in host memory. Ranks start their gathers in
/// the same order, whatever the slots. kUnimplemented: this program was built without NCCL.
StatusOr<std::unique_ptr<Collective>> NewNcclCollective(std::unique_ptr<Collective> control,
                                                        int device, Collective::Deadline deadline);

}  // namespace deltawire
