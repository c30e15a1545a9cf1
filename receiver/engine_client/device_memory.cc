#include "receiver/engine_client/device_memory.h"

#include <utility>

namespace deltawire::engine {
namespace {

Status ToStatus(const kernels::GpuStatus& status) {
  switch (status.error) {
    case kernels::GpuError::kNone:
      return absl::OkStatus();
    case kernels::GpuError::kMemory:
      return absl::ResourceExhaustedError(status.message);
    case kernels::GpuError::kNotBuilt:
      return absl::UnimplementedError(status.message);
    case kernels::GpuError::kNoDevice:
    case kernels::GpuError::kOldDriver:
      return absl::FailedPreconditionError(status.message);
    case kernels::GpuError::kArgument:
      return absl::InvalidArgumentError(status.message);
    case kernels::GpuError::kDevice:
      break;
  }
  return absl::InternalError(status.message);
}

}  // namespace

Status DeviceMemory::Find(int device) {
  kernels::GpuInfo info;
  return ToStatus(kernels::FindGpu(device, &info));
}

DeviceMemory::DeviceMemory(void* stream, const LayoutProgram& program,
                           std::vector<std::byte*> memory)
    : stream_(stream), program_(program), memory_(std::move(memory)) {}

StatusOr<std::unique_ptr<DeviceMemory>> DeviceMemory::Create(int device, void* stream,
                                                             const LayoutProgram& program,
                                                             size_t tensors,
                                                             std::vector<std::byte*> memory,
                                                             size_t chunk_bytes) {
  std::unique_ptr<DeviceMemory> made(new DeviceMemory(stream, program, std::move(memory)));
  std::vector<kernels::GpuBox> boxes;
  for (size_t t = 0; t < tensors; ++t) {
    for (const OrderedBox& box : program.boxes(t)) {
      boxes.push_back({made->memory_[box.storage()], box.copy()});
    }
  }
  DW_RETURN_IF_ERROR(ToStatus(kernels::GpuQueue::Create(device, &made->queue_)));
  made->staging_ = std::make_unique<std::byte[]>(chunk_bytes);
  const MutableBytes staging(made->staging_.get(), chunk_bytes);
  DW_RETURN_IF_ERROR(ToStatus(made->queue_->Pin(staging, &made->pin_)));
  DW_RETURN_IF_ERROR(ToStatus(made->queue_->Mapped(staging, &made->mapped_)));
  DW_RETURN_IF_ERROR(ToStatus(kernels::GpuScatter::Create(device, boxes, &made->scatter_)));
  return made;
}

void DeviceMemory::Move(const OrderedBox& box, uint64_t begin, uint64_t end, bool fetch) {
  pieces_.clear();
  box.Pieces(begin, end, &pieces_);
  const MutableBytes live(memory_[box.storage()], box.storage_last());
  Status status;
  for (kernels::StridedCopy piece : pieces_) {
    piece.src_offset -= static_cast<int64_t>(begin);
    if (fetch) {
      std::swap(piece.src_offset, piece.dst_offset);
      std::swap(piece.src_strides, piece.dst_strides);
    }
    status.Update(ToStatus(fetch ? queue_->Place(piece, live, mapped_, {})
                                 : queue_->Place(piece, mapped_, live, {})));
  }
  // Even after an error: what was queued reads and writes the staging.
  status.Update(ToStatus(queue_->Wait()));
  status_.Update(status);
}

std::byte* DeviceMemory::Fetch(const OrderedBox& box, uint64_t begin, uint64_t end) {
  Move(box, begin, end, true);
  return staging_.get();
}

void DeviceMemory::Store(const OrderedBox& box, uint64_t begin, uint64_t end) {
  Move(box, begin, end, false);
}

Status DeviceMemory::TakeStatus() { return std::exchange(status_, absl::OkStatus()); }

Status DeviceMemory::Load(std::span<const Change> changes) {
  std::vector<kernels::GpuScatterItem> items;
  if (changes.empty()) return ToStatus(scatter_->Load(items));
  const OrderedBox* const first = program_.boxes(0).data();
  for (const Change& change : changes) {
    const auto boxes = program_.boxes(change.tensor);
    if (boxes.empty()) continue;
    items.push_back({.first_byte = change.first_byte,
                     .bytes = change.bytes,
                     .width = change.width,
                     .first_box = static_cast<uint32_t>(boxes.data() - first),
                     .boxes = static_cast<uint32_t>(boxes.size()),
                     .payloads = change.payloads});
  }
  return ToStatus(scatter_->Load(items));
}

Status DeviceMemory::Add(bool backwards) {
  DW_RETURN_IF_ERROR(ToStatus(scatter_->Queue(backwards, stream_)));
  return ToStatus(scatter_->Wait(stream_));
}

}  // namespace deltawire::engine
