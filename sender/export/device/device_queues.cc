#include "sender/export/device/device_queues.h"

#include <algorithm>

#include "sender/export/gather/gpu_status.h"

namespace deltawire {

DeviceQueues::DeviceQueues() = default;
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

StatusOr<MutableBytes> DeviceQueues::Map(const MappedHalf& half, kernels::GpuQueue& queue) {
  if (half.mapping == nullptr) {
    return absl::FailedPreconditionError("the half is not whole in this agent's memory");
  }
  const auto known = std::ranges::find(pinned_, half.mapping, &PinnedHalf::mapping);
  if (known == pinned_.end()) {
    PinnedHalf made;
    made.mapping = half.mapping;
    made.refused = FromGpu(queue.Pin(half.bytes, &made.pin));
    pinned_.push_back(std::move(made));
    DW_RETURN_IF_ERROR(pinned_.back().refused);
  } else {
    DW_RETURN_IF_ERROR(known->refused);
  }
  MutableBytes mapped;
  DW_RETURN_IF_ERROR(FromGpu(queue.Mapped(half.bytes, &mapped)));
  return mapped;
}

Status DeviceQueues::Place(int device, const kernels::StridedCopy& copy, Bytes source,
                           MutableBytes to, const MappedHalf& half) {
  DropUnused();
  DW_ASSIGN_OR_RETURN(kernels::GpuQueue* const queue, Queue(device));
  DW_ASSIGN_OR_RETURN(const MutableBytes mapped, Map(half, *queue));
  const MutableBytes there =
      mapped.subspan(static_cast<size_t>(to.data() - half.bytes.data()), to.size());
  const Status queued = FromGpu(queue->Place(copy, source, there, {}));
  // Waits after an error too: a running kernel must not outlive the offload.
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
