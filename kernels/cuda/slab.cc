#include "kernels/cuda/slab.h"

namespace deltawire::kernels::gpu {
namespace {

/// Returns the most blocks that a slab can hold: the last block of each chunk may be a short one.
uint32_t MostBlocks(size_t data_bytes) {
  return static_cast<uint32_t>(data_bytes / kBlock) + kMaxBatchChunks;
}

}  // namespace

GpuStatus Slab::Make(size_t data_bytes, bool two_halves) {
  capacity = data_bytes;
  const size_t most = MostBlocks(data_bytes);
  const size_t out =
      data_bytes + kMaxBatchChunks * (kTableOffset + kAlign) + most * kMaxRowBytes + kSlack;
  DW_GPU_RETURN_IF_ERROR(stream.Make());
  DW_GPU_RETURN_IF_ERROR(after.Make(data_bytes + kSlack));
  DW_GPU_RETURN_IF_ERROR(before.Make(two_halves ? data_bytes + kSlack : 0));
  DW_GPU_RETURN_IF_ERROR(slots.Make(data_bytes + kSlack));
  DW_GPU_RETURN_IF_ERROR(payloads.Make(out));
  DW_GPU_RETURN_IF_ERROR(chunks.Make(kMaxBatchChunks));
  DW_GPU_RETURN_IF_ERROR(blocks.Make(most));
  DW_GPU_RETURN_IF_ERROR(rows.Make(most));
  DW_GPU_RETURN_IF_ERROR(stream_at.Make(most));
  DW_GPU_RETURN_IF_ERROR(plans.Make(kMaxBatchChunks));
  DW_GPU_RETURN_IF_ERROR(results.Make(kMaxBatchChunks));
  DW_GPU_RETURN_IF_ERROR(apply_in.Make(most));
  DW_GPU_RETURN_IF_ERROR(apply_out.Make(most));
  DW_GPU_RETURN_IF_ERROR(digests.Make(kMaxBatchChunks));
  DW_GPU_RETURN_IF_ERROR(host_payloads.Make(out));
  DW_GPU_RETURN_IF_ERROR(host_chunks.Make(kMaxBatchChunks));
  DW_GPU_RETURN_IF_ERROR(host_blocks.Make(most));
  DW_GPU_RETURN_IF_ERROR(host_results.Make(kMaxBatchChunks));
  DW_GPU_RETURN_IF_ERROR(host_apply_in.Make(most));
  DW_GPU_RETURN_IF_ERROR(host_apply_out.Make(most));
  return host_digests.Make(kMaxBatchChunks);
}

bool Slab::HasRoom(const GpuChunk& chunk) const {
  return pieces.size() < kMaxBatchChunks && used + Aligned(chunk.bytes) <= capacity &&
         blocks_used + BlocksOf(chunk) <= blocks.size();
}

void Slab::Take(uint32_t index, size_t item, const GpuChunk& chunk) {
  pieces.push_back({index, used, item});
  used += Aligned(chunk.bytes);
  blocks_used += BlocksOf(chunk);
}

void Slab::Clear() {
  pieces.clear();
  used = 0;
  blocks_used = 0;
}

uint64_t Slab::device_bytes() const {
  return after.size() + before.size() + slots.size() + payloads.size();
}

}  // namespace deltawire::kernels::gpu
