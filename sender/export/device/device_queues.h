// The queues of this process's CUDA devices, and the halves that are pinned for them.
// Owner: one per client or export. Threads: one caller. Cost: two queues per device in use; of a
// half the parts that were written are pinned, until DropUnused finds that nobody else has it.
// Errors: CUDA's, as kernels/gpu.h reports them; a half whose pinning failed once is not tried
// again.
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

/// Memory that may be pinned as a whole, and the object that keeps it mapped. Null `mapping`: it
/// may not be pinned, since an agent that owns a part has no memory behind the rest.
struct MappedHalf {
  MutableBytes bytes;
  std::shared_ptr<const void> mapping;
};

class DeviceQueues {
 public:
  /// Pins parts of `part_bytes`, a multiple of the page size: a rank of many pins what it writes.
  explicit DeviceQueues(uint64_t part_bytes = 256ULL << 20);
  ~DeviceQueues();

  /// `turn`: of queues whose work is waited for apart from that of the others.
  StatusOr<kernels::GpuQueue*> Queue(int device, int turn = 0);
  /// Queues one copy from `source` to `to`, within the half, whose parts that it writes are pinned
  /// then.
  Status Copy(kernels::GpuQueue& queue, const kernels::StridedCopy& copy,
              const kernels::Convert& convert, Bytes source, MutableBytes to,
              const MappedHalf& half);
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
    std::vector<std::unique_ptr<kernels::GpuPin>> parts;  // destroyed before the mapping
    std::byte* mapped = nullptr;  // by which kernels reach the half's first byte
    Status refused;
  };
  /// The address by which this device's kernels reach bytes [first, last) of `half`.
  StatusOr<std::byte*> Map(const MappedHalf& half, uint64_t first, uint64_t last,
                           kernels::GpuQueue& queue);
  Status PinPart(PinnedHalf& pinned, const MappedHalf& half, size_t part, kernels::GpuQueue& queue);

  const uint64_t part_bytes_;
  // A list: elements that move into one another's place would be unmapped while they are pinned.
  std::list<PinnedHalf> pinned_;
  // Destroyed before the memory that they use.
  std::map<std::pair<int, int>, std::unique_ptr<kernels::GpuQueue>> queues_;  // by device and turn
};

}  // namespace deltawire
