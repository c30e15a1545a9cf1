// The kernels' launchers and what device code reads of a batch of chunks.
// All pointers are device memory unless said otherwise; all work is queued on `stream`; a launch
// that fails shows in cudaGetLastError(). Data pointers start at multiples of 16 bytes.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/block_encode.h"
#include "kernels/cuda/place.h"
#include "kernels/cuda/table.h"

namespace deltawire::kernels::gpu {

struct DeviceChunk {
  const uint8_t* before = nullptr;  ///< unused when applying
  uint8_t* after = nullptr;         ///< the new bytes; when applying, the data
  uint32_t* slot = nullptr;         ///< scratch of `bytes`, rounded up to 16
  uint64_t digest_before = 0;
  uint32_t bytes = 0;
  uint32_t width = 1;
  uint32_t first_block = 0;  ///< into the batch's blocks
  uint32_t blocks = 0;
};

struct DeviceBlock {
  uint32_t chunk = 0;
  uint32_t index = 0;  ///< within the chunk
};

/// What comes back per chunk of a diff.
struct ChunkOut {
  uint64_t digest_after = 0;
  uint64_t offset = 0;  ///< into `out`
  uint32_t bytes = 0;
  uint32_t changed = 0;
};

inline constexpr uint32_t kMaxBatchChunks = 1024;

struct EncodeBatch {
  const DeviceChunk* chunks = nullptr;
  const DeviceBlock* blocks = nullptr;
  uint32_t chunk_count = 0;  ///< <= kMaxBatchChunks
  uint32_t block_count = 0;
  BlockOut* rows = nullptr;       ///< scratch, one a block
  uint32_t* stream_at = nullptr;  ///< scratch, one a block
  TablePlan* plans = nullptr;     ///< scratch, one a chunk
  ChunkOut* results = nullptr;    ///< one a chunk
  uint8_t* out = nullptr;         ///< payloads, each from a multiple of 16 on, in order
  KeyView key;
};
void LaunchEncode(const EncodeBatch& batch, cudaStream_t stream);

/// A block of a payload whose table the CPU has read and checked.
struct ApplyBlockIn {
  uint64_t stream_at = 0;  ///< into `payloads`
  uint32_t chunk = 0;
  uint32_t index = 0;
  uint32_t changed = 0;
  uint32_t large = 0;
  uint32_t bytes = 0;
  uint32_t padding = 0;
};
struct ApplyBlockOut {
  uint64_t digest = 0;  ///< what the chunk's digest grows by
  uint64_t ok = 0;
};
struct ApplyBatch {
  const DeviceChunk* chunks = nullptr;
  const ApplyBlockIn* blocks = nullptr;
  uint32_t block_count = 0;
  const uint8_t* payloads = nullptr;  ///< starts at a multiple of 4; readable 4 bytes beyond
  ApplyBlockOut* results = nullptr;
  KeyView key;
};
void LaunchApply(const ApplyBatch& batch, cudaStream_t stream);

/// Adds each chunk's digest of `after` to digests[i], which the caller has zeroed.
void LaunchDigest(const DeviceChunk* chunks, uint32_t count, const KeyView& key, uint64_t* digests,
                  cudaStream_t stream);

void LaunchPlace(const PlacePlan& plan, const uint8_t* src, uint8_t* dst, cudaStream_t stream);

}  // namespace deltawire::kernels::gpu
