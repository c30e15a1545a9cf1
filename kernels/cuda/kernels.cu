// The CUDA kernels around the algorithms of block_encode.h, block_decode.h, digest.h and place.h.
#include "kernels/cuda/block_decode.h"
#include "kernels/cuda/block_team.cuh"
#include "kernels/cuda/digest.h"
#include "kernels/cuda/launch.h"
#include "kernels/element_width.h"

namespace deltawire::kernels::gpu {
namespace {

constexpr uint32_t kWarp = 32;
constexpr uint32_t kPlanThreads = 128;
constexpr uint32_t kGatherThreads = 256;
constexpr uint32_t kPlaceThreads = 256;
constexpr uint32_t kAllLanes = 0xffffffff;

template <typename T>
__device__ BlockOut EncodeOne(BlockTeam& team, EncodeShared& s, const DeviceChunk& chunk,
                              uint32_t index, const KeyView& key) {
  const uint32_t first = index * kBlock;
  const uint32_t elements = chunk.bytes / static_cast<uint32_t>(sizeof(T));
  const uint32_t byte = first * static_cast<uint32_t>(sizeof(T));
  return EncodeBlock<T>(team, s, reinterpret_cast<const T*>(chunk.before) + first,
                        reinterpret_cast<const T*>(chunk.after) + first,
                        Least(kBlock, elements - first), byte, key, chunk.slot + byte / 4);
}

__global__ void __launch_bounds__(kLanes, 3) EncodeKernel(EncodeBatch batch) {
  __shared__ EncodeShared shared;
  __shared__ BlockTeam::Scratch scratch;
  BlockTeam team(scratch);
  const DeviceBlock block = batch.blocks[blockIdx.x];
  const DeviceChunk& chunk = batch.chunks[block.chunk];
  BlockOut row;
  WithWidth(chunk.width, [&]<typename T>(T) {
    row = EncodeOne<T>(team, shared, chunk, block.index, batch.key);
  });
  if (threadIdx.x == 0) batch.rows[blockIdx.x] = row;
}

__device__ uint64_t WarpSum(uint64_t v) {
  for (uint32_t d = kWarp / 2; d > 0; d /= 2) v += __shfl_xor_sync(kAllLanes, v, d);
  return v;
}

/// One warp per chunk plans the table, finds the streams' places and sums the digest.
__global__ void PlanKernel(EncodeBatch batch) {
  const uint32_t c = (blockIdx.x * blockDim.x + threadIdx.x) / kWarp, lane = threadIdx.x % kWarp;
  if (c >= batch.chunk_count) return;
  const DeviceChunk& chunk = batch.chunks[c];
  const BlockOut* rows = batch.rows + chunk.first_block;
  RowSummary sum;
  uint64_t digest = 0;
  uint32_t streams = 0;  // bytes of the streams of all earlier blocks
  for (uint32_t base = 0; base < chunk.blocks; base += kWarp) {
    const uint32_t b = base + lane;
    uint32_t inclusive = 0, own = 0;
    if (b < chunk.blocks) {
      const BlockOut row = rows[b];
      sum.Add(row);
      digest += row.digest;
      inclusive = own = row.bytes;
    }
    for (uint32_t d = 1; d < kWarp; d *= 2) {
      const uint32_t left = __shfl_up_sync(kAllLanes, inclusive, d);
      if (lane >= d) inclusive += left;
    }
    if (b < chunk.blocks) batch.stream_at[chunk.first_block + b] = streams + inclusive - own;
    streams += __shfl_sync(kAllLanes, inclusive, kWarp - 1);
  }
  for (uint32_t i = 0; i < kFastColumns; ++i) {
    sum.least[i] = __reduce_min_sync(kAllLanes, sum.least[i]);
    sum.most[i] = __reduce_max_sync(kAllLanes, sum.most[i]);
  }
  sum.changed = __reduce_add_sync(kAllLanes, sum.changed);
  sum.stream_bytes = streams;
  digest = WarpSum(digest);
  if (lane != 0) return;
  const TablePlan plan = PlanTable(sum, chunk.blocks);
  batch.plans[c] = plan;
  ChunkOut result;
  result.digest_after = chunk.digest_before + digest;
  result.bytes = plan.payload_bytes;
  result.changed = plan.changed;
  batch.results[c] = result;
}

/// One thread per chunk places the payloads one after the other.
__global__ void OffsetKernel(EncodeBatch batch) {
  __shared__ uint64_t ends[kMaxBatchChunks];
  const uint32_t c = threadIdx.x;
  const uint64_t own =
      c < batch.chunk_count ? (uint64_t{batch.results[c].bytes} + kAlign - 1) / kAlign * kAlign : 0;
  ends[c] = own;
  __syncthreads();
  for (uint32_t d = 1; d < kMaxBatchChunks; d *= 2) {
    const uint64_t left = c >= d ? ends[c - d] : 0;
    __syncthreads();
    ends[c] += left;
    __syncthreads();
  }
  if (c < batch.chunk_count) batch.results[c].offset = ends[c] - own;
}

struct SlotBytes {
  const uint32_t* words;
  __device__ uint8_t Byte(uint32_t i) const {
    return static_cast<uint8_t>(words[i / 4] >> 8 * (i % 4));
  }
  /// Returns four bytes of the stream. REQUIRES: the stream has all four.
  __device__ uint32_t Word(uint32_t i) const {
    if (i % 4 == 0) return words[i / 4];
    return __funnelshift_r(words[i / 4], words[i / 4 + 1], 8 * (i % 4));
  }
};

template <typename T>
struct DifferenceBytes {
  const T* before;
  const T* after;
  __device__ uint8_t Byte(uint32_t i) const {
    const uint32_t element = i / sizeof(T);
    const T d = static_cast<T>(after[element] - before[element]);
    return static_cast<uint8_t>(d >> 8 * (i % sizeof(T)));
  }
  __device__ uint32_t Word(uint32_t i) const {
    uint32_t word = 0;
    for (uint32_t b = 0; b < 4; ++b) word |= static_cast<uint32_t>(Byte(i + b)) << 8 * b;
    return word;
  }
};

/// Copies `bytes` to any address, with all threads of a thread block.
template <typename Source>
__device__ void CopyOut(const Source& source, uint32_t bytes, uint8_t* out) {
  const uint32_t skew = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(out) & 3);
  const uint32_t head = Least((4 - skew) & 3, bytes);
  const uint32_t words = (bytes - head) / 4;
  for (uint32_t i = threadIdx.x; i < head; i += blockDim.x) out[i] = source.Byte(i);
  auto* to = reinterpret_cast<uint32_t*>(out + head);
  for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) to[i] = source.Word(head + 4 * i);
  for (uint32_t i = head + 4 * words + threadIdx.x; i < bytes; i += blockDim.x) {
    out[i] = source.Byte(i);
  }
}

template <typename T>
__device__ void CopyRaw(const DeviceChunk& chunk, uint32_t index, uint32_t bytes, uint8_t* out) {
  const uint32_t first = index * kBlock;
  CopyOut(DifferenceBytes<T>{reinterpret_cast<const T*>(chunk.before) + first,
                             reinterpret_cast<const T*>(chunk.after) + first},
          bytes, out);
}

/// One thread block per block copies its stream to the payload; the first also writes the table.
__global__ void __launch_bounds__(kGatherThreads) GatherKernel(EncodeBatch batch) {
  const DeviceBlock block = batch.blocks[blockIdx.x];
  const DeviceChunk& chunk = batch.chunks[block.chunk];
  const ChunkOut& result = batch.results[block.chunk];
  if (result.bytes == 0) return;
  const TablePlan& plan = batch.plans[block.chunk];
  uint8_t* out = batch.out + result.offset;
  if (block.index == 0) {
    const BlockOut* rows = batch.rows + chunk.first_block;
    const uint32_t elements = chunk.bytes / chunk.width;
    for (uint32_t i = threadIdx.x; i < plan.bytes; i += blockDim.x) {
      out[i] = TableByte(plan, rows, elements, chunk.width, i);
    }
  }
  const BlockOut row = batch.rows[blockIdx.x];
  if (row.bytes == 0) return;
  out += plan.bytes + batch.stream_at[blockIdx.x];
  if (row.raw == 0) {
    const uint32_t* slot = chunk.slot + block.index * (kBlock / 4 * chunk.width);
    return CopyOut(SlotBytes{slot}, row.bytes, out);
  }
  WithWidth(chunk.width, [&]<typename T>(T) { CopyRaw<T>(chunk, block.index, row.bytes, out); });
}

template <typename T>
__device__ bool ApplyOne(BlockTeam& team, DecodeShared& s, const DeviceChunk& chunk, uint32_t index,
                         const BlockIn& in, const KeyView& key, uint64_t* digest) {
  const uint32_t first = index * kBlock;
  const uint32_t elements = chunk.bytes / static_cast<uint32_t>(sizeof(T));
  return gpu::ApplyBlock<T>(team, s, in, reinterpret_cast<T*>(chunk.after) + first,
                            Least(kBlock, elements - first),
                            first * static_cast<uint32_t>(sizeof(T)), key, digest);
}

__global__ void __launch_bounds__(kLanes, 2) ApplyKernel(ApplyBatch batch) {
  __shared__ DecodeShared shared;
  __shared__ BlockTeam::Scratch scratch;
  BlockTeam team(scratch);
  const ApplyBlockIn block = batch.blocks[blockIdx.x];
  const DeviceChunk& chunk = batch.chunks[block.chunk];
  const BlockIn in{batch.payloads + block.stream_at, block.changed, block.large, block.bytes};
  uint64_t digest = 0;
  bool ok = false;
  WithWidth(chunk.width, [&]<typename T>(T) {
    ok = ApplyOne<T>(team, shared, chunk, block.index, in, batch.key, &digest);
  });
  if (threadIdx.x == 0) batch.results[blockIdx.x] = {digest, ok ? 1u : 0u};
}

template <typename T>
__device__ bool ScatterOne(BlockTeam& team, DecodeShared& s, const ScatterBatch& batch,
                           const ApplyBlockIn& block) {
  const ScatterChunk& chunk = batch.chunks[block.chunk];
  const uint32_t first = block.index * kBlock;
  const uint32_t elements = chunk.bytes / static_cast<uint32_t>(sizeof(T));
  const BlockIn in{batch.payloads + block.stream_at, block.changed, block.large, block.bytes};
  const AtPlaces<T> sink{batch.boxes + chunk.first_box, chunk.boxes,
                         chunk.first_byte + uint64_t{first} * sizeof(T), batch.backwards};
  uint64_t none = 0;
  return DecodeBlock<T>(team, s, in, Least(kBlock, elements - first), sink, &none);
}

__global__ void __launch_bounds__(kLanes, 2) ScatterKernel(ScatterBatch batch) {
  __shared__ DecodeShared shared;
  __shared__ BlockTeam::Scratch scratch;
  BlockTeam team(scratch);
  const ApplyBlockIn block = batch.blocks[blockIdx.x];
  bool ok = false;
  WithWidth(batch.chunks[block.chunk].width,
            [&]<typename T>(T) { ok = ScatterOne<T>(team, shared, batch, block); });
  if (threadIdx.x == 0 && !ok) AtomicAdd(batch.malformed, 1);
}

__global__ void __launch_bounds__(kDigestLanes)
    DigestKernel(const DeviceChunk* chunks, KeyView key, uint64_t* digests) {
  __shared__ uint64_t sums[kDigestLanes / kWarp];
  const DeviceChunk& chunk = chunks[blockIdx.x / kSlices];
  const uint64_t sum =
      WarpSum(DigestLane(chunk.after, chunk.bytes, key, blockIdx.x % kSlices, threadIdx.x));
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  uint64_t total = 0;
  for (const uint64_t s : sums) total += s;
  atomicAdd(reinterpret_cast<unsigned long long*>(&digests[blockIdx.x / kSlices]),
            static_cast<unsigned long long>(total));
}

template <typename Unit>
__global__ void __launch_bounds__(kPlaceThreads)
    PlaceKernel(PlacePlan plan, const uint8_t* src, uint8_t* dst) {
  const uint64_t threads = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < plan.units; i += threads) {
    const PlaceStep step = PlaceUnit(plan, i);
    *reinterpret_cast<Unit*>(dst + step.dst) = *reinterpret_cast<const Unit*>(src + step.src);
  }
}

__global__ void __launch_bounds__(kPlaceThreads)
    ShiftKernel(PlacePlan plan, const uint8_t* src, uint8_t* dst) {
  const uint64_t threads = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < plan.units; i += threads) {
    const PlacePiece piece = PieceOf(plan, i, reinterpret_cast<uintptr_t>(dst));
    MovePiece(src + piece.src, dst + piece.dst, piece.bytes);
  }
}

__global__ void __launch_bounds__(kPlaceThreads)
    ConvertKernel(PlacePlan plan, const uint8_t* src, uint8_t* dst) {
  const uint64_t threads = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < plan.units; i += threads) {
    const PlaceStep step = PlaceUnit(plan, i);
    ConvertUnit(plan, src + step.src, dst + step.dst);
  }
}

}  // namespace

void LaunchEncode(const EncodeBatch& batch, cudaStream_t stream) {
  if (batch.block_count == 0) return;
  EncodeKernel<<<batch.block_count, kLanes, 0, stream>>>(batch);
  constexpr uint32_t kPerBlock = kPlanThreads / kWarp;
  PlanKernel<<<(batch.chunk_count + kPerBlock - 1) / kPerBlock, kPlanThreads, 0, stream>>>(batch);
  OffsetKernel<<<1, kMaxBatchChunks, 0, stream>>>(batch);
  GatherKernel<<<batch.block_count, kGatherThreads, 0, stream>>>(batch);
}

void LaunchApply(const ApplyBatch& batch, cudaStream_t stream) {
  if (batch.block_count == 0) return;
  ApplyKernel<<<batch.block_count, kLanes, 0, stream>>>(batch);
}

void LaunchScatter(const ScatterBatch& batch, cudaStream_t stream) {
  if (batch.block_count == 0) return;
  ScatterKernel<<<batch.block_count, kLanes, 0, stream>>>(batch);
}

void LaunchDigest(const DeviceChunk* chunks, uint32_t count, const KeyView& key, uint64_t* digests,
                  cudaStream_t stream) {
  if (count == 0) return;
  DigestKernel<<<count * kSlices, kDigestLanes, 0, stream>>>(chunks, key, digests);
}

void LaunchPlace(const PlacePlan& plan, const uint8_t* src, uint8_t* dst, cudaStream_t stream) {
  if (plan.units == 0) return;
  constexpr uint64_t kMostBlocks = 1 << 16;
  const auto blocks =
      static_cast<uint32_t>(Least((plan.units + kPlaceThreads - 1) / kPlaceThreads, kMostBlocks));
  if (plan.from != Number::kNone) {
    ConvertKernel<<<blocks, kPlaceThreads, 0, stream>>>(plan, src, dst);
    return;
  }
  if (plan.shifted_run != 0) {
    ShiftKernel<<<blocks, kPlaceThreads, 0, stream>>>(plan, src, dst);
    return;
  }
  switch (plan.unit) {
    case 16:
      PlaceKernel<uint4><<<blocks, kPlaceThreads, 0, stream>>>(plan, src, dst);
      break;
    case 8:
      PlaceKernel<uint2><<<blocks, kPlaceThreads, 0, stream>>>(plan, src, dst);
      break;
    case 4:
      PlaceKernel<uint32_t><<<blocks, kPlaceThreads, 0, stream>>>(plan, src, dst);
      break;
    case 2:
      PlaceKernel<uint16_t><<<blocks, kPlaceThreads, 0, stream>>>(plan, src, dst);
      break;
    default:
      PlaceKernel<uint8_t><<<blocks, kPlaceThreads, 0, stream>>>(plan, src, dst);
      break;
  }
}

}  // namespace deltawire::kernels::gpu
