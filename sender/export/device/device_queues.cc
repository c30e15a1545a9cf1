#include "sender/export/device/device_queues.h"

#include <algorithm>

#include "sender/export/gather/gpu_status.h"

namespace deltawire {

namespace {

/// The bytes that a copy writes are in [first, last) of its destination.
struct Span {
  int64_t first, last;
};
Span WrittenBy(const kernels::StridedCopy& copy) {
  Span span{copy.dst_offset, copy.dst_offset + static_cast<int64_t>(copy.run_bytes)};
  for (size_t d = 0; d < copy.dims; ++d) {
    if (copy.counts[d] == 0) return {copy.dst_offset, copy.dst_offset};
    const int64_t reach = static_cast<int64_t>(copy.counts[d] - 1) * copy.dst_strides[d];
    (reach < 0 ? span.first : span.last) += reach;
  }
  return span;
}

}  // namespace

DeviceQueues::DeviceQueues(uint64_t part_bytes) : part_bytes_(part_bytes) {}
DeviceQueues::~DeviceQueues() = default;

StatusOr<kernels::GpuQueue*> DeviceQueues::Queue(int device, int turn) {
  std::unique_ptr<kernels::GpuQueue>& queue = queues_[{device, turn}];
  if (queue == nullptr) {
    const Status made = FromGpu(kernels::GpuQueue::Create(device, &queue));
    if (!made.ok()) {
      queues_.erase({device, turn});
      return made;
    }
  }
  return queue.get();
}

Status DeviceQueues::PinPart(PinnedHalf& pinned, const MappedHalf& half, size_t part,
                             kernels::GpuQueue& queue) {
  const uint64_t first = part * part_bytes_;
  const MutableBytes bytes =
      half.bytes.subspan(first, std::min<uint64_t>(part_bytes_, half.bytes.size() - first));
  DW_RETURN_IF_ERROR(FromGpu(queue.Pin(bytes, &pinned.parts[part])));
  MutableBytes mapped;
  DW_RETURN_IF_ERROR(FromGpu(queue.Mapped(bytes, &mapped)));
  if (pinned.mapped == nullptr) pinned.mapped = mapped.data() - first;
  if (pinned.mapped + first == mapped.data()) return absl::OkStatus();
  return absl::FailedPreconditionError("the device sees parts of the half at unrelated addresses");
}

StatusOr<std::byte*> DeviceQueues::Map(const MappedHalf& half, uint64_t first, uint64_t last,
                                       kernels::GpuQueue& queue) {
  if (half.mapping == nullptr) {
    return absl::FailedPreconditionError("the half is not whole in this agent's memory");
  }
  auto known = std::ranges::find(pinned_, half.mapping, &PinnedHalf::mapping);
  if (known == pinned_.end()) {
    known = pinned_.emplace(pinned_.end());
    known->mapping = half.mapping;
    known->parts.resize((half.bytes.size() + part_bytes_ - 1) / part_bytes_);
  }
  for (uint64_t part = first / part_bytes_; part * part_bytes_ < last; ++part) {
    DW_RETURN_IF_ERROR(known->refused);
    if (known->parts[part] != nullptr) continue;
    known->refused = PinPart(*known, half, part, queue);
    if (known->refused.ok()) continue;
    // Unpin it all: a foreign copy must not cross the border of pinned memory. Kernels may still
    // write.
    WaitForAll().IgnoreError();
    for (auto& pinned : known->parts) pinned.reset();
  }
  DW_RETURN_IF_ERROR(known->refused);
  return known->mapped + first;
}

Status DeviceQueues::Copy(kernels::GpuQueue& queue, const kernels::StridedCopy& copy,
                          const kernels::Convert& convert, Bytes source, MutableBytes to,
                          const MappedHalf& half) {
  const Span written = WrittenBy(copy);
  if (written.first == written.last) return absl::OkStatus();
  const auto start = static_cast<uint64_t>(to.data() - half.bytes.data());
  const uint64_t first = start + static_cast<uint64_t>(written.first);
  const uint64_t last = start + static_cast<uint64_t>(written.last);
  DW_ASSIGN_OR_RETURN(std::byte* const mapped, Map(half, first, last, queue));
  const MutableBytes there(mapped - written.first, to.size());
  // A kernel may cross from one part to the next. A copy of the copy engine must not.
  kernels::StridedCopy piece = copy;
  const bool engine = convert.moves_only() && copy.dims == 0;
  for (uint64_t at = first; at < last; at += piece.run_bytes) {
    if (engine) {
      piece.run_bytes = std::min(last, (at / part_bytes_ + 1) * part_bytes_) - at;
      piece.src_offset = copy.src_offset + static_cast<int64_t>(at - first);
      piece.dst_offset = copy.dst_offset + static_cast<int64_t>(at - first);
    }
    DW_RETURN_IF_ERROR(FromGpu(queue.Place(piece, source, there, convert)));
    if (!engine) break;
  }
  return absl::OkStatus();
}

Status DeviceQueues::Place(int device, const std::vector<Placement>& placements,
                           const MappedHalf& half) {
  DropUnused();
  DW_ASSIGN_OR_RETURN(kernels::GpuQueue* const queue, Queue(device));
  Status queued;
  for (const Placement& p : placements) {
    if (!queued.ok()) break;
    // The copy engine needs no pinned memory.
    queued = half.mapping == nullptr && p.copy.dims == 0
                 ? FromGpu(queue->Place(p.copy, p.source, p.to, {}))
                 : Copy(*queue, p.copy, {}, p.source, p.to, half);
  }
  // Wait after an error, too: a running kernel must not outlive the offload.
  const Status done = FromGpu(queue->Wait());
  return queued.ok() ? done : queued;
}

void DeviceQueues::DropUnused() {
  std::erase_if(pinned_, [](const PinnedHalf& p) { return p.mapping.use_count() == 1; });
}

Status DeviceQueues::WaitForAll() {
  Status first;
  for (const auto& [key, queue] : queues_) {
    const Status status = FromGpu(queue->Wait());
    if (first.ok()) first = status;
  }
  return first;
}

Status DeviceQueues::WaitForTurn(int turn) {
  Status first;
  for (const auto& [key, queue] : queues_) {
    if (key.second != turn) continue;
    const Status status = FromGpu(queue->Wait());
    if (first.ok()) first = status;
  }
  return first;
}

kernels::GpuQueue* DeviceQueues::first() const {
  return queues_.empty() ? nullptr : queues_.begin()->second.get();
}

}  // namespace deltawire
