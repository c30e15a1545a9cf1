// The implementation of kernels/gpu.h and gpu_scatter.h for builds without a CUDA compiler.
#include "kernels/gpu.h"
#include "kernels/gpu_scatter.h"

namespace deltawire::kernels {
namespace {

GpuStatus NotBuilt() { return {GpuError::kNotBuilt, "this program was built without CUDA"}; }

}  // namespace

struct GpuDiffer::Impl {};

GpuStatus FindGpu(int, GpuInfo*) { return NotBuilt(); }
GpuStatus GpuMemory(int, uint64_t*, uint64_t*) { return NotBuilt(); }
GpuStatus GpuBuffer::Create(size_t, std::unique_ptr<GpuBuffer>*) { return NotBuilt(); }
GpuBuffer::~GpuBuffer() = default;
GpuStatus GpuCopy(MutableBytes, Bytes) { return NotBuilt(); }
GpuStatus GpuPlace(std::span<const StridedCopy>, Bytes, MutableBytes, const Convert&) {
  return NotBuilt();
}
GpuStatus GpuPin::Create(Bytes, std::unique_ptr<GpuPin>*) { return NotBuilt(); }
GpuPin::~GpuPin() { (void)memory_; }

struct GpuQueue::Impl {};
GpuQueue::GpuQueue(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GpuQueue::~GpuQueue() = default;
GpuStatus GpuQueue::Create(int, std::unique_ptr<GpuQueue>*) { return NotBuilt(); }
GpuStatus GpuQueue::Pin(MutableBytes, std::unique_ptr<GpuPin>*) { return NotBuilt(); }
GpuStatus GpuQueue::Mapped(MutableBytes, MutableBytes*) { return NotBuilt(); }
GpuStatus GpuQueue::Copy(MutableBytes, Bytes) { return NotBuilt(); }
GpuStatus GpuQueue::Place(const StridedCopy&, Bytes, MutableBytes, const Convert&) {
  return NotBuilt();
}
GpuStatus GpuQueue::Wait() { return NotBuilt(); }

GpuDiffer::GpuDiffer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GpuDiffer::~GpuDiffer() = default;
GpuStatus GpuDiffer::Create(const GpuOptions&, const DigestKey&, std::span<const GpuChunk>,
                            std::unique_ptr<GpuDiffer>*) {
  return NotBuilt();
}
GpuStatus GpuDiffer::Diff(Bytes, Bytes, std::span<const uint32_t>, std::span<const uint64_t>,
                          const GpuEncoded&) {
  return NotBuilt();
}
GpuStatus GpuDiffer::Digest(Bytes, std::span<const uint32_t>, std::span<uint64_t>) {
  return NotBuilt();
}
GpuStatus GpuDiffer::Add(std::span<const GpuChunk>, GpuHome) { return NotBuilt(); }
GpuStatus GpuDiffer::Adopt(std::span<const GpuLive>, std::span<uint64_t>) { return NotBuilt(); }
GpuStatus GpuDiffer::DiffLive(std::span<const GpuLive>, const GpuEncoded&) { return NotBuilt(); }
GpuStatus GpuDiffer::Apply(MutableBytes, std::span<GpuApplyItem>) { return NotBuilt(); }
GpuStatus GpuDiffer::ReadBase(MutableBytes, std::span<const uint32_t>) { return NotBuilt(); }
uint64_t GpuDiffer::device_bytes() const { return 0; }

struct GpuScatter::Impl {};
GpuScatter::GpuScatter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GpuScatter::~GpuScatter() = default;
GpuStatus GpuScatter::Create(int, std::span<const GpuBox>, std::unique_ptr<GpuScatter>*) {
  return NotBuilt();
}
GpuStatus GpuScatter::Load(std::span<const GpuScatterItem>) { return NotBuilt(); }
GpuStatus GpuScatter::Queue(bool, void*) { return NotBuilt(); }
GpuStatus GpuScatter::Wait(void*) { return NotBuilt(); }
uint64_t GpuScatter::device_bytes() const { return 0; }

}  // namespace deltawire::kernels
