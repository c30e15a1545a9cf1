// A copier of shards that the CPU cannot read to their HF places. A CUDA device writes straight
// into the pinned half with a kernel. If that is impossible, and for callbacks, rows go over two
// host buckets. Each rank has one, with one caller. After an error no byte counts as written, and
// the caller abandons the offload.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "kernels/gpu.h"
#include "sender/export/device/device_queues.h"
#include "sender/export/device/live_tensor.h"
#include "sender/export/mcore/transfer.h"

namespace deltawire {

struct DeviceShard {
  const mcore::Match* match = nullptr;
  const LiveTensor* live = nullptr;  ///< REQUIRES: not on_host()
};

/// The destination of the shards.
struct HalfMemory {
  mcore::Transfer::TensorMemory tensor;
  MappedHalf mapped;  ///< holds all tensors
  mcore::Transfer::Placed placed = {};
  /// Returns the parts of a step that are to be copied; null: all of it.
  std::function<std::vector<mcore::Step>(const mcore::Step&)> parts = {};
};

struct DevicePlaceStats {
  uint64_t direct_bytes = 0;  ///< of HF tensors, written by a device's kernel
  uint64_t staged_bytes = 0;  ///< of shards, copied over the buckets
  uint64_t buckets = 0;
  uint64_t bucket_bytes = 0;  ///< of both buckets together
  std::string why_staged;     ///< why the direct path was not used; empty: it was
};

class DevicePlace {
 public:
  /// A bucket holds `bucket_bytes`, or one row if that is larger. Shards that a device writes are
  /// reported about `batch_bytes` at a time.
  explicit DevicePlace(uint64_t bucket_bytes = 64ULL << 20, uint64_t batch_bytes = 256ULL << 20)
      : bucket_bytes_(bucket_bytes), batch_bytes_(batch_bytes) {}
  ~DevicePlace();

  /// Returns when every byte is in place. Shards are reported while later ones are being copied. If
  /// a device fails, the unreported shards are written again over the buckets; it fails only if
  /// that fails, too.
  StatusOr<DevicePlaceStats> Run(const mcore::Plan& plan, std::span<const DeviceShard> shards,
                                 const HalfMemory& half, ThreadPool& pool);

 private:
  class Staging;
  struct Bucket {
    std::unique_ptr<std::byte[]> memory;
    uint64_t bytes = 0;
    std::unique_ptr<kernels::GpuPin> pin;  // destroyed before its memory
  };
  /// Shards that one queue of each device is copying.
  struct Batch {
    std::vector<mcore::Step> steps;
    size_t shards = 0;
    uint64_t bytes = 0;
  };
  /// Removes from `shards` those that are in place and were reported: all, unless there is an
  /// error.
  Status PlaceDirectly(const mcore::Plan& plan, std::vector<DeviceShard>& shards,
                       const HalfMemory& half, DevicePlaceStats& stats);
  Status QueueShard(const mcore::Plan& plan, const DeviceShard& shard, const HalfMemory& half,
                    int turn, Batch& batch);

  static constexpr int kTurns = 2;
  const uint64_t bucket_bytes_, batch_bytes_;
  Bucket ring_[2];
  DeviceQueues queues_;  // destroyed before the buckets, which its work uses
};

}  // namespace deltawire
