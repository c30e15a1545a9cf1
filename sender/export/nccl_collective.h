// Collective over NCCL: bytes go from device memory to device memory, and on the root to pinned
// host memory behind that. Small messages and the verdict on who is gone stay with another
// Collective. Threads: one caller, which must see the device. Memory on the root: each buffer
// twice, host and device. Not run on devices yet. Without CUDA or NCCL in the build there is only
// the error. Errors: as Collective; a peer that NCCL does not miss by itself is missed at the
// deadline.
#pragma once

#include <memory>

#include "common/base/status.h"
#include "sender/export/collective.h"

namespace deltawire {

/// `control` connects the same ranks (NewGlooCollective); rank, size and root are its own. `device`
/// is this process's CUDA device, another one for each rank of a machine. Sources may be in device
/// memory, where all work on them must be complete, or in host memory. Ranks start their gathers in
/// the same order, whatever the slots. kUnimplemented: this program was built without NCCL.
StatusOr<std::unique_ptr<Collective>> NewNcclCollective(std::unique_ptr<Collective> control,
                                                        int device, Collective::Deadline deadline);

}  // namespace deltawire
