// The functions that launch kernels, and the batches of chunks that kernels read. All pointers are
// to device memory unless noted; the caller keeps that memory until `stream`, on which all work is
// queued, has passed it. Data start at multiples of 16 bytes. A failed launch shows in
// cudaGetLastError(). Each stream is for one thread at a time.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/block_encode.h"
#include "kernels/cuda/place.h"
#include "kernels/cuda/scatter.h"
#include "kernels/cuda/table.h"

namespace deltawire::kernels::gpu {

struct DeviceChunk {
  const uint8_t* before = nullptr;  ///< unused when applying
  uint8_t* after = nullptr;         ///< the new bytes; when applying, the bytes to change
  uint32_t* slot = nullptr;         ///< scratch of `bytes`, rounded up to 16
  uint64_t digest_before = 0;
  uint32_t bytes = 0;
  uint32_t width = 1;
  uint32_t first_block = 0;  ///< index into the batch's blocks
  uint32_t blocks = 0;
};

struct DeviceBlock {
  uint32_t chunk = 0;
  uint32_t index = 0;  ///< number of the block within its chunk
};

struct ChunkOut {
  uint64_t digest_after = 0;
  uint64_t offset = 0;  ///< of the payload in `out`
  uint32_t bytes = 0;
  uint32_t changed = 0;
};

inline constexpr uint32_t kMaxBatchChunks = 1024;

struct EncodeBatch {
  const DeviceChunk* chunks = nullptr;
  const DeviceBlock* blocks = nullptr;
  uint32_t chunk_count = 0;  ///< <= kMaxBatchChunks
  uint32_t block_count = 0;
  BlockOut* rows = nullptr;       ///< scratch, one per block
  uint32_t* stream_at = nullptr;  ///< scratch, one per block
  TablePlan* plans = nullptr;     ///< scratch, one per chunk
  ChunkOut* results = nullptr;    ///< one per chunk
  uint8_t* out = nullptr;         ///< payloads in order, each at a multiple of 16
  KeyView key;
};
void LaunchEncode(const EncodeBatch& batch, cudaStream_t stream);

/// A block of a payload whose table the CPU has read and checked.
struct ApplyBlockIn {
  uint64_t stream_at = 0;  ///< offset in `payloads`
  uint32_t chunk = 0;
  uint32_t index = 0;
  uint32_t changed = 0;
  uint32_t large = 0;
  uint32_t bytes = 0;
  uint32_t padding = 0;
};
struct ApplyBlockOut {
  uint64_t digest = 0;  ///< growth of the chunk's digest by this block
  uint64_t ok = 0;
};
struct ApplyBatch {
  const DeviceChunk* chunks = nullptr;
  const ApplyBlockIn* blocks = nullptr;
  uint32_t block_count = 0;
  const uint8_t* payloads = nullptr;  ///< at a multiple of 4; 4 more bytes are readable
  ApplyBlockOut* results = nullptr;
  KeyView key;
};
void LaunchApply(const ApplyBatch& batch, cudaStream_t stream);

/// A chunk of a tensor whose elements have places of their own.
struct ScatterChunk {
  uint64_t first_byte = 0;  ///< of the chunk in its tensor
  uint32_t bytes = 0;
  uint32_t width = 1;
  uint32_t first_box = 0;  ///< the tensor's boxes
  uint32_t boxes = 0;
};
/// REQUIRES: no two blocks of a batch have the same elements.
struct ScatterBatch {
  const ScatterChunk* chunks = nullptr;
  const PlaceBox* boxes = nullptr;
  const ApplyBlockIn* blocks = nullptr;
  uint32_t block_count = 0;
  const uint8_t* payloads = nullptr;  ///< as in ApplyBatch
  bool backwards = false;             ///< subtract
  uint32_t* malformed = nullptr;      ///< incremented for each malformed block
};
void LaunchScatter(const ScatterBatch& batch, cudaStream_t stream);

/// Adds the digest of chunk i's `after` to digests[i]. REQUIRES: the caller has zeroed `digests`.
void LaunchDigest(const DeviceChunk* chunks, uint32_t count, const KeyView& key, uint64_t* digests,
                  cudaStream_t stream);

void LaunchPlace(const PlacePlan& plan, const uint8_t* src, uint8_t* dst, cudaStream_t stream);

}  // namespace deltawire::kernels::gpu
