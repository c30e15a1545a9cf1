// An update of elements at places of their own in a GPU's memory, as an engine's parameters. The
// addresses stay, so captured graphs stay valid. It uses no CUDA types, and is for one thread at a
// time. On the device it takes 200 bytes per box, up to 1.25 times the largest update's payloads,
// and 32 bytes for each of its changed blocks. An error of Load leaves the memory untouched.
// Without CUDA every call returns kNotBuilt.
#pragma once

#include <memory>
#include <span>

#include "kernels/gpu.h"

namespace deltawire::kernels {

/// Elements of a tensor (copy.src_*, in its bytes) and their places (copy.dst_*, from `memory`).
struct GpuBox {
  std::byte* memory = nullptr;  ///< on the device
  StridedCopy copy;
};

struct GpuScatterItem {
  uint64_t first_byte = 0;  ///< of the chunk in its tensor
  uint32_t bytes = 0;       ///< as in GpuChunk
  uint32_t width = 1;
  uint32_t first_box = 0;  ///< the tensor's boxes, in the list passed to Create
  uint32_t boxes = 0;
  std::span<const Bytes> payloads;  ///< of the codec fast, in the order of application
};

/// Like all CUDA code here, it has not run on a device (docs/benchmarks.md#not-run-on-a-device).
class GpuScatter {
 public:
  /// REQUIRES: no two elements of boxes share a place, and places are aligned to their elements.
  /// Returns kArgument for boxes in which division cannot find a byte of the tensor.
  static GpuStatus Create(int device, std::span<const GpuBox> boxes,
                          std::unique_ptr<GpuScatter>* scatter);
  ~GpuScatter();
  GpuScatter(const GpuScatter&) = delete;
  GpuScatter& operator=(const GpuScatter&) = delete;

  /// Copies the items to the device, in place of those of the last Load; the caller can then free
  /// its own. Allocates only for the largest update so far. REQUIRES: the payloads were validated
  /// (their tables are checked once more), and queued work has been waited for.
  GpuStatus Load(std::span<const GpuScatterItem> items);
  /// Queues the additions, or with `backwards` subtractions, on `stream`: a cudaStream_t of this
  /// device, or null for the default one. Only the launch can still fail here.
  GpuStatus Queue(bool backwards, void* stream);
  /// Waits for `stream`. Returns kDevice also if the device has found a payload malformed.
  GpuStatus Wait(void* stream);
  uint64_t device_bytes() const;

 private:
  struct Impl;
  explicit GpuScatter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deltawire::kernels
