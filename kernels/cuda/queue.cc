// The implementation of GpuQueue of kernels/gpu.h.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/place_plan.h"

namespace deltawire::kernels {
namespace gpu {

GpuStatus QueuePlace(const StridedCopy& copy, const Convert& convert, const uint8_t* from,
                     uint8_t* to, const Stream& stream) {
  if (convert.moves_only() && copy.dims == 0) {
    return stream.Copy(to + copy.dst_offset, from + copy.src_offset, copy.run_bytes);
  }
  return Start("starting a strided copy", [&] {
    LaunchPlace(PlanPlace(copy, convert, reinterpret_cast<uintptr_t>(from),
                          reinterpret_cast<uintptr_t>(to)),
                from, to, stream.get());
  });
}

}  // namespace gpu

using gpu::Check;
using gpu::OnDevice;

struct GpuQueue::Impl {
  int device = 0;
  gpu::Stream stream;
};

GpuQueue::GpuQueue(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

GpuStatus GpuQueue::Create(int device, std::unique_ptr<GpuQueue>* queue) {
  GpuInfo info;
  DW_GPU_RETURN_IF_ERROR(FindGpu(device, &info));
  const OnDevice here(device);
  DW_GPU_RETURN_IF_ERROR(here.status());
  auto impl = std::make_unique<Impl>();
  impl->device = device;
  DW_GPU_RETURN_IF_ERROR(impl->stream.Make());
  queue->reset(new GpuQueue(std::move(impl)));
  return {};
}

GpuQueue::~GpuQueue() {
  const OnDevice here(impl_->device);
  (void)impl_->stream.Wait();
  impl_.reset();
}

GpuStatus GpuQueue::Pin(MutableBytes host, std::unique_ptr<GpuPin>* pin) {
  const OnDevice here(impl_->device);
  DW_GPU_RETURN_IF_ERROR(here.status());
  return GpuPin::Create(host, pin);
}

GpuStatus GpuQueue::Mapped(MutableBytes pinned, MutableBytes* mapped) {
  const OnDevice here(impl_->device);
  DW_GPU_RETURN_IF_ERROR(here.status());
  void* device = nullptr;
  DW_GPU_RETURN_IF_ERROR(
      Check(cudaHostGetDevicePointer(&device, pinned.data(), 0), "a kernel's way to host memory"));
  *mapped = {static_cast<std::byte*>(device), pinned.size()};
  return {};
}

GpuStatus GpuQueue::Copy(MutableBytes to, Bytes from) {
  if (to.size() != from.size()) return {GpuError::kArgument, "a copy between unequal sizes"};
  const OnDevice here(impl_->device);
  DW_GPU_RETURN_IF_ERROR(here.status());
  return impl_->stream.Copy(to.data(), from.data(), from.size());
}

GpuStatus GpuQueue::Place(const StridedCopy& copy, Bytes src, MutableBytes dst,
                          const Convert& convert) {
  const OnDevice here(impl_->device);
  DW_GPU_RETURN_IF_ERROR(here.status());
  return gpu::QueuePlace(copy, convert, reinterpret_cast<const uint8_t*>(src.data()),
                         reinterpret_cast<uint8_t*>(dst.data()), impl_->stream);
}

GpuStatus GpuQueue::Wait() {
  const OnDevice here(impl_->device);
  DW_GPU_RETURN_IF_ERROR(here.status());
  return impl_->stream.Wait();
}

}  // namespace deltawire::kernels
