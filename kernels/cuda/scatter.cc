// The implementation of kernels/gpu_scatter.h.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/memory.h"
#include "kernels/gpu_scatter.h"
#include "kernels/payload.h"

namespace deltawire::kernels {

using gpu::Check;
using gpu::OnDevice;

namespace {

constexpr size_t kReadBehind = 4;  // readable bytes that kernels need after the payloads

/// Returns false when division cannot find every byte of the tensor.
bool Place(const GpuBox& box, gpu::PlaceBox* placed) {
  const StridedCopy& copy = box.copy;
  if (copy.dims > StridedCopy::kMaxDims || copy.run_bytes == 0 || copy.src_offset < 0) return false;
  std::vector<size_t> order;
  for (size_t d = 0; d < copy.dims; ++d) {
    if (copy.counts[d] == 0) return false;
    if (copy.counts[d] == 1) continue;
    if (copy.src_strides[d] <= 0) return false;
    order.push_back(d);
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return copy.src_strides[a] > copy.src_strides[b]; });
  placed->memory = reinterpret_cast<uint8_t*>(box.memory) + copy.dst_offset;
  placed->first = static_cast<uint64_t>(copy.src_offset);
  placed->run_bytes = copy.run_bytes;
  placed->dims = static_cast<uint32_t>(order.size());
  uint64_t span = copy.run_bytes;
  for (size_t i = order.size(); i-- > 0;) {
    const size_t d = order[i];
    const auto stride = static_cast<uint64_t>(copy.src_strides[d]);
    if (stride < span) return false;
    span += (copy.counts[d] - 1) * stride;
    placed->counts[i] = copy.counts[d];
    placed->src_strides[i] = stride;
    placed->dst_strides[i] = copy.dst_strides[d];
  }
  placed->last = placed->first + span;
  return true;
}

}  // namespace

struct GpuScatter::Impl {
  /// The payload blocks that are the `round`-th of their chunks: one kernel, since no two of them
  /// have the same elements.
  struct Round {
    size_t first, count;
  };

  GpuStatus Describe(std::span<const GpuScatterItem> items, size_t round, uint64_t* at);
  GpuStatus Upload(std::span<const GpuScatterItem> items, size_t rounds, uint64_t payload_bytes);

  int device = 0;
  size_t box_count = 0;
  gpu::DeviceArray<gpu::PlaceBox> boxes;
  gpu::DeviceArray<uint32_t> malformed;
  // From the items of the last Load.
  std::vector<gpu::ScatterChunk> host_chunks;
  std::vector<gpu::ApplyBlockIn> host_blocks;
  std::vector<Round> rounds;
  gpu::DeviceArray<gpu::ScatterChunk> chunks;
  gpu::DeviceArray<gpu::ApplyBlockIn> blocks;
  gpu::DeviceArray<uint8_t> payloads;
  gpu::Stream stream;  // for uploads
};

GpuScatter::GpuScatter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

GpuScatter::~GpuScatter() {
  const OnDevice here(impl_->device);
  (void)impl_->stream.Wait();
  impl_.reset();
}

GpuStatus GpuScatter::Create(int device, std::span<const GpuBox> boxes,
                             std::unique_ptr<GpuScatter>* scatter) {
  GpuInfo info;
  DW_GPU_RETURN_IF_ERROR(FindGpu(device, &info));
  std::vector<gpu::PlaceBox> placed(boxes.size());
  for (size_t i = 0; i < boxes.size(); ++i) {
    if (!Place(boxes[i], &placed[i])) {
      return {GpuError::kArgument, "box " + std::to_string(i) + " of " +
                                       std::to_string(boxes.size()) +
                                       ": its bytes cannot be found by division"};
    }
  }
  const OnDevice here(device);
  DW_GPU_RETURN_IF_ERROR(here.status());
  auto impl = std::make_unique<Impl>();
  impl->device = device;
  impl->box_count = boxes.size();
  DW_GPU_RETURN_IF_ERROR(impl->boxes.Make(boxes.size()));
  DW_GPU_RETURN_IF_ERROR(impl->malformed.Make(1));
  DW_GPU_RETURN_IF_ERROR(impl->stream.Make());
  const GpuStatus copied =
      impl->stream.Copy(impl->boxes.data(), placed.data(), placed.size() * sizeof(gpu::PlaceBox));
  // The queued work reads `placed`.
  const GpuStatus done = impl->stream.Wait();
  DW_GPU_RETURN_IF_ERROR(copied);
  DW_GPU_RETURN_IF_ERROR(done);
  scatter->reset(new GpuScatter(std::move(impl)));
  return {};
}

GpuStatus GpuScatter::Impl::Describe(std::span<const GpuScatterItem> items, size_t round,
                                     uint64_t* at) {
  for (uint32_t i = 0; i < items.size(); ++i) {
    const GpuScatterItem& item = items[i];
    if (round >= item.payloads.size()) continue;
    const Bytes payload = item.payloads[round];
    PayloadView view;
    if (PayloadView::Parse(payload, item.bytes, item.width, &view) != DecodeStatus::kOk) {
      return {GpuError::kArgument, "payload " + std::to_string(round) + " of chunk " +
                                       std::to_string(i) + " was not validated"};
    }
    BlockCursor cursor(view);
    for (uint32_t b = 0; b < view.blocks(); ++b, cursor.Next()) {
      if (cursor.row().changed == 0) continue;
      gpu::ApplyBlockIn in;
      in.stream_at = *at + static_cast<uint64_t>(cursor.stream() - Ptr(payload));
      in.chunk = i;
      in.index = b;
      in.changed = cursor.row().changed;
      in.large = cursor.row().large;
      in.bytes = cursor.row().bytes;
      host_blocks.push_back(in);
    }
    *at += (payload.size() + gpu::kAlign - 1) / gpu::kAlign * gpu::kAlign;
  }
  return {};
}

GpuStatus GpuScatter::Impl::Upload(std::span<const GpuScatterItem> items, size_t depth,
                                   uint64_t payload_bytes) {
  DW_GPU_RETURN_IF_ERROR(chunks.Reserve(host_chunks.size()));
  DW_GPU_RETURN_IF_ERROR(blocks.Reserve(host_blocks.size()));
  DW_GPU_RETURN_IF_ERROR(payloads.Reserve(payload_bytes + kReadBehind));
  DW_GPU_RETURN_IF_ERROR(stream.Copy(chunks.data(), host_chunks.data(),
                                     host_chunks.size() * sizeof(gpu::ScatterChunk)));
  DW_GPU_RETURN_IF_ERROR(stream.Copy(blocks.data(), host_blocks.data(),
                                     host_blocks.size() * sizeof(gpu::ApplyBlockIn)));
  uint64_t at = 0;
  for (size_t round = 0; round < depth; ++round) {
    for (const GpuScatterItem& item : items) {
      if (round >= item.payloads.size()) continue;
      const Bytes payload = item.payloads[round];
      DW_GPU_RETURN_IF_ERROR(stream.Copy(payloads.data() + at, payload.data(), payload.size()));
      at += (payload.size() + gpu::kAlign - 1) / gpu::kAlign * gpu::kAlign;
    }
  }
  return {};
}

GpuStatus GpuScatter::Load(std::span<const GpuScatterItem> items) {
  Impl& impl = *impl_;
  impl.rounds.clear();
  impl.host_blocks.clear();
  impl.host_chunks.clear();
  size_t depth = 0;
  for (const GpuScatterItem& item : items) {
    if (item.bytes == 0 || !SizesAllowed(item.bytes, item.width) || item.boxes > impl.box_count ||
        item.first_box > impl.box_count - item.boxes) {
      return {GpuError::kArgument, "a chunk of " + std::to_string(item.bytes) + " bytes and " +
                                       std::to_string(item.boxes) + " boxes"};
    }
    impl.host_chunks.push_back(
        {item.first_byte, item.bytes, item.width, item.first_box, item.boxes});
    depth = std::max(depth, item.payloads.size());
  }
  uint64_t payload_bytes = 0;
  std::vector<Impl::Round> rounds;
  for (size_t round = 0; round < depth; ++round) {
    const size_t first = impl.host_blocks.size();
    DW_GPU_RETURN_IF_ERROR(impl.Describe(items, round, &payload_bytes));
    if (impl.host_blocks.size() > first) rounds.push_back({first, impl.host_blocks.size() - first});
  }
  const OnDevice here(impl.device);
  DW_GPU_RETURN_IF_ERROR(here.status());
  const GpuStatus copied = impl.Upload(items, depth, payload_bytes);
  // The queued work reads the caller's memory.
  const GpuStatus done = impl.stream.Wait();
  DW_GPU_RETURN_IF_ERROR(copied);
  DW_GPU_RETURN_IF_ERROR(done);
  impl.rounds = std::move(rounds);
  return {};
}

GpuStatus GpuScatter::Queue(bool backwards, void* stream) {
  Impl& impl = *impl_;
  const auto on = static_cast<cudaStream_t>(stream);
  const OnDevice here(impl.device);
  DW_GPU_RETURN_IF_ERROR(here.status());
  DW_GPU_RETURN_IF_ERROR(
      Check(cudaMemsetAsync(impl.malformed.data(), 0, sizeof(uint32_t), on), "a count"));
  gpu::ScatterBatch batch;
  batch.chunks = impl.chunks.data();
  batch.boxes = impl.boxes.data();
  batch.payloads = impl.payloads.data();
  batch.backwards = backwards;
  batch.malformed = impl.malformed.data();
  for (const Impl::Round& round : impl.rounds) {
    batch.blocks = impl.blocks.data() + round.first;
    batch.block_count = static_cast<uint32_t>(round.count);
    DW_GPU_RETURN_IF_ERROR(
        gpu::Start("starting to scatter", [&] { gpu::LaunchScatter(batch, on); }));
  }
  return {};
}

GpuStatus GpuScatter::Wait(void* stream) {
  Impl& impl = *impl_;
  const auto on = static_cast<cudaStream_t>(stream);
  const OnDevice here(impl.device);
  DW_GPU_RETURN_IF_ERROR(here.status());
  uint32_t malformed = 0;
  const GpuStatus asked = Check(
      cudaMemcpyAsync(&malformed, impl.malformed.data(), sizeof malformed, cudaMemcpyDefault, on),
      "a count");
  const GpuStatus done = Check(cudaStreamSynchronize(on), "work on the device");
  DW_GPU_RETURN_IF_ERROR(asked);
  DW_GPU_RETURN_IF_ERROR(done);
  if (malformed == 0) return {};
  return {GpuError::kDevice, "CUDA: " + std::to_string(malformed) +
                                 " blocks of validated payloads were malformed on the device"};
}

uint64_t GpuScatter::device_bytes() const {
  return impl_->boxes.size() * sizeof(gpu::PlaceBox) +
         impl_->chunks.size() * sizeof(gpu::ScatterChunk) +
         impl_->blocks.size() * sizeof(gpu::ApplyBlockIn) + impl_->payloads.size();
}

}  // namespace deltawire::kernels
