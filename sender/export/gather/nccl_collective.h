// A Collective over NCCL: from device memory to device memory, and on the root on to pinned memory.
// Small messages and reasons of failure go over another Collective. On the root each buffer exists
// twice, on the device and on the host. NCCL names no ranks, and a dead one may be noticed only at
// the deadline. Not run on a device: docs/benchmarks.md#not-run-on-a-device.
#pragma once

#include <memory>

#include "common/base/status.h"
#include "sender/export/gather/collective.h"

namespace deltawire {

/// `control` connects the same ranks (NewGlooCollective); its rank, size and root are used.
/// `device` is this process's CUDA device, a different one for each rank of a machine. Sources may
/// be in device memory, where all work on them must be complete, or in host memory. Ranks start
/// their gathers in the same order, whatever the slots. kUnimplemented: this program was built
/// without CUDA or NCCL.
StatusOr<std::unique_ptr<Collective>> NewNcclCollective(std::unique_ptr<Collective> control,
                                                        int device, Collective::Deadline deadline);

}  // namespace deltawire
