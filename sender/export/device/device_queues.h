// The queues of this process's CUDA devices, and the halves that are pinned for them.
// Owner: one per client or export. Threads: one caller. Cost: a queue per device in use; a pinned
// half stays mapped until DropUnused finds that nobody else has it. Errors: CUDA's, as
// kernels/gpu.h reports them; a half whose pinning failed once is not tried again.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "kernels/gpu.h"

namespace deltawire {

/// Memory that may be pinned as a whole, and the object that keeps it mapped. Null `mapping`: it
/// may not be pinned, since an agent that owns a part has no memory behind the rest.
struct MappedHalf {
  MutableBytes bytes;
  std::shared_ptr<const void> mapping;
};

class DeviceQueues {
 public:
  DeviceQueues();
  ~DeviceQueues();

  /// `turn`: of queues whose work is waited for apart from that of the others.
  StatusOr<kernels::GpuQueue*> Queue(int device, int turn = 0);
  /// The address by which this device's kernels reach `half`. Pins it, once for as long as it is
  /// mapped.
  StatusOr<MutableBytes> Map(const MappedHalf& half, kernels::GpuQueue& queue);
  /// Runs one copy from `source`, on `device`, to `to`, within the half; returns when it is done.
  Status Place(int device, const kernels::StridedCopy& copy, Bytes source, MutableBytes to,
               const MappedHalf& half);
  /// Unpins the halves that nobody else keeps mapped: they are not in use any more.
  void DropUnused();
  /// Waits for all queues, or for those of one turn; returns the first error.
  Status WaitForAll();
  Status WaitForTurn(int turn);
  /// Any queue; null while no device was used.
  kernels::GpuQueue* first() const;

 private:
  struct PinnedHalf {
    std::shared_ptr<const void> mapping;
    std::unique_ptr<kernels::GpuPin> pin;  // destroyed before the mapping; null: pinning failed
    Status refused;
  };
  // A list: elements that move into one another's place would be unmapped while they are pinned.
  std::list<PinnedHalf> pinned_;
  // Destroyed before the memory that they use.
  std::map<std::pair<int, int>, std::unique_ptr<kernels::GpuQueue>> queues_;  // by device and turn
};

}  // namespace deltawire
