// The queues of this process's CUDA devices, and the halves that are pinned for them. Each device
// in use has two queues. The written parts of a half stay pinned until DropUnused finds that it is
// no longer mapped elsewhere. A half whose pinning failed once is not tried again. One thread at a
// time calls it.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "kernels/gpu.h"

namespace deltawire {

/// Memory that may be pinned as a whole, and the object that keeps it mapped. A null `mapping`
/// means that it may not be pinned: an agent that owns a part has no memory behind the rest.
struct MappedHalf {
  MutableBytes bytes;
  std::shared_ptr<const void> mapping;
};

class DeviceQueues {
 public:
  /// Pins parts of `part_bytes`, a multiple of the page size: a rank pins only what it writes.
  explicit DeviceQueues(uint64_t part_bytes = 256ULL << 20);
  ~DeviceQueues();

  /// Queues of different turns are waited for separately.
  StatusOr<kernels::GpuQueue*> Queue(int device, int turn = 0);
  /// Queues one copy from `source` to `to`, within the half, and pins the parts that it writes.
  Status Copy(kernels::GpuQueue& queue, const kernels::StridedCopy& copy,
              const kernels::Convert& convert, Bytes source, MutableBytes to,
              const MappedHalf& half);
  /// A copy from a device to `to`, within a half.
  struct Placement {
    kernels::StridedCopy copy;
    Bytes source;
    MutableBytes to;
  };
  /// Runs the copies from `device`. Returns when they are done. Contiguous ones need no pinned
  /// half.
  Status Place(int device, const std::vector<Placement>& placements, const MappedHalf& half);
  /// Unpins the halves that no other object keeps mapped.
  void DropUnused();
  /// Waits for all queues, or for those of one turn. Returns the first error.
  Status WaitForAll();
  Status WaitForTurn(int turn);
  /// Returns any queue, or null if no device was used yet.
  kernels::GpuQueue* first() const;

 private:
  struct PinnedHalf {
    std::shared_ptr<const void> mapping;
    std::vector<std::unique_ptr<kernels::GpuPin>> parts;  // destroyed before the mapping
    std::byte* mapped = nullptr;  // the kernels' address of the half's first byte
    Status refused;
  };
  /// Returns the address by which this device's kernels reach bytes [first, last) of `half`.
  StatusOr<std::byte*> Map(const MappedHalf& half, uint64_t first, uint64_t last,
                           kernels::GpuQueue& queue);
  Status PinPart(PinnedHalf& pinned, const MappedHalf& half, size_t part, kernels::GpuQueue& queue);

  const uint64_t part_bytes_;
  // A list, because moving a pinned element would unmap its memory.
  std::list<PinnedHalf> pinned_;
  // Destroyed before the memory that they use.
  std::map<std::pair<int, int>, std::unique_ptr<kernels::GpuQueue>> queues_;  // by device and turn
};

}  // namespace deltawire
