// One step of a GpuDiffer's pipeline: a stream, and memory for as many chunks as fit. One thread at
// a time; wait for its stream before you destroy or Clear it. Costs about four times the slab's
// bytes on the device, and once its bytes pinned on the host.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/memory.h"

namespace deltawire::kernels::gpu {

struct Piece {
  uint32_t chunk = 0;
  uint64_t at = 0;  ///< offset in the slab's data
  size_t item = 0;  ///< index of the item in the call
};

struct Slab {
  static constexpr size_t kSlack = 64;  ///< extra bytes, since whole words are read and written

  /// With `two_halves` there is room for the old bytes too, which then are copied as well.
  GpuStatus Make(size_t data_bytes, bool two_halves);

  bool HasRoom(const GpuChunk& chunk) const;
  /// REQUIRES: HasRoom(chunk).
  void Take(uint32_t index, size_t item, const GpuChunk& chunk);
  bool empty() const { return pieces.empty(); }
  void Clear();
  uint64_t device_bytes() const;

  size_t capacity = 0;  ///< bytes of data
  Stream stream;
  std::vector<Piece> pieces;
  uint64_t used = 0;  ///< bytes of data in use, a multiple of kAlign
  uint32_t blocks_used = 0;

  // On the device.
  DeviceArray<uint8_t> after, before, slots, payloads;
  DeviceArray<DeviceChunk> chunks;
  DeviceArray<DeviceBlock> blocks;
  DeviceArray<BlockOut> rows;
  DeviceArray<uint32_t> stream_at;
  DeviceArray<TablePlan> plans;
  DeviceArray<ChunkOut> results;
  DeviceArray<ApplyBlockIn> apply_in;
  DeviceArray<ApplyBlockOut> apply_out;
  DeviceArray<uint64_t> digests;

  // Their counterparts on the host.
  PinnedArray<uint8_t> host_payloads;
  PinnedArray<DeviceChunk> host_chunks;
  PinnedArray<DeviceBlock> host_blocks;
  PinnedArray<ChunkOut> host_results;
  PinnedArray<ApplyBlockIn> host_apply_in;
  PinnedArray<ApplyBlockOut> host_apply_out;
  PinnedArray<uint64_t> host_digests;
};

inline uint32_t BlocksOf(const GpuChunk& chunk) {
  return (chunk.bytes / chunk.width + kBlock - 1) / kBlock;
}
inline uint64_t Aligned(uint64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

}  // namespace deltawire::kernels::gpu
