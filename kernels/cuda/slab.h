// One step of a GpuDiffer's pipeline: a stream, and the memory for as many chunks as fit.
// Owner: the differ. One thread at a time; Free only after its stream was waited for.
// Cost: about four times the slab's bytes on the device, the slab's once more pinned on the host.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/memory.h"

namespace deltawire::kernels::gpu {

/// A chunk in a slab.
struct Piece {
  uint32_t chunk = 0;
  uint64_t at = 0;  ///< in the slab's data
  size_t item = 0;  ///< which of the call's
};

struct Slab {
  static constexpr size_t kSlack = 64;  ///< words are read and written whole

  /// `two_halves`: old bytes travel as well.
  GpuStatus Make(size_t data_bytes, bool two_halves);

  bool HasRoom(const GpuChunk& chunk) const;
  /// Takes the chunk in. REQUIRES: HasRoom.
  void Take(uint32_t index, size_t item, const GpuChunk& chunk);
  bool empty() const { return pieces.empty(); }
  void Clear();
  uint64_t device_bytes() const;

  size_t capacity = 0;  ///< of data
  Stream stream;
  std::vector<Piece> pieces;
  uint64_t used = 0;  ///< of data, a multiple of kAlign
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

  // Their other ends.
  PinnedArray<uint8_t> host_payloads;
  PinnedArray<DeviceChunk> host_chunks;
  PinnedArray<DeviceBlock> host_blocks;
  PinnedArray<ChunkOut> host_results;
  PinnedArray<ApplyBlockIn> host_apply_in;
  PinnedArray<ApplyBlockOut> host_apply_out;
  PinnedArray<uint64_t> host_digests;
};

/// Blocks of a chunk.
inline uint32_t BlocksOf(const GpuChunk& chunk) {
  return (chunk.bytes / chunk.width + kBlock - 1) / kBlock;
}
inline uint64_t Aligned(uint64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

}  // namespace deltawire::kernels::gpu
