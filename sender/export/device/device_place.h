// Takes shards that the CPU cannot read to their HF places: from a CUDA device by a kernel straight
// into the pinned half; where that cannot be, and from callbacks, over two host buckets of rows.
// Owner: one per rank. Keeps the buckets, and halves pinned (so their mappings live) until a Run
// finds them dropped by all others. Threads: one caller. Errors: no byte counts as written;
// abandon.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "kernels/gpu.h"
#include "sender/export/device/live_tensor.h"
#include "sender/export/mcore/transfer.h"

namespace deltawire {

struct DeviceShard {
  const mcore::Match* match = nullptr;
  const LiveTensor* live = nullptr;  ///< not on_host()
};

/// Where the shards go.
struct HalfMemory {
  mcore::Transfer::TensorMemory tensor;
  /// What may be pinned as a whole and holds all tensors, and who keeps it mapped. Null: it may not
  /// be pinned, since an agent that owns a part of a model has no memory behind the rest.
  MutableBytes mapped;
  std::shared_ptr<const void> mapping;
  mcore::Transfer::Placed placed = {};
};

struct DevicePlaceStats {
  uint64_t direct_bytes = 0;  ///< of HF tensors, written by a device
  uint64_t staged_bytes = 0;  ///< of shards, that went over the buckets
  uint64_t buckets = 0;
  uint64_t bucket_bytes = 0;  ///< of both together
  std::string why_staged;     ///< what spoke against the direct way; empty: nothing
};

class DevicePlace {
 public:
  /// A bucket holds so much, or one row where that is more.
  explicit DevicePlace(uint64_t bucket_bytes = 64ULL << 20) : bucket_bytes_(bucket_bytes) {}
  ~DevicePlace();

  /// Returns when every byte is in place. What a failing device has written by then is right, but
  /// is written again over the buckets; only when these fail too is there an error.
  StatusOr<DevicePlaceStats> Run(const mcore::Plan& plan, std::span<const DeviceShard> shards,
                                 const HalfMemory& half, ThreadPool& pool);

 private:
  class Staging;
  struct Bucket {
    std::unique_ptr<std::byte[]> memory;
    uint64_t bytes = 0;
    std::unique_ptr<kernels::GpuPin> pin;  // before its memory goes
  };
  struct PinnedHalf {
    std::shared_ptr<const void> mapping;
    std::unique_ptr<kernels::GpuPin> pin;  // null: refused
    Status refused;
  };

  StatusOr<kernels::GpuQueue*> Queue(int device);
  Status Pin(const HalfMemory& half, kernels::GpuQueue& queue);
  Status PlaceDirectly(const mcore::Plan& plan, std::span<const DeviceShard> shards,
                       const HalfMemory& half, DevicePlaceStats& stats);
  Status QueueShard(const mcore::Plan& plan, const DeviceShard& shard, const HalfMemory& half,
                    std::vector<mcore::Step>& queued, DevicePlaceStats& stats);
  /// Waits for all queues; the first error.
  Status WaitForAll();

  const uint64_t bucket_bytes_;
  Bucket ring_[2];
  std::vector<PinnedHalf> pinned_;
  std::map<int, std::unique_ptr<kernels::GpuQueue>> queues_;  // ended before the memory goes
};

}  // namespace deltawire
