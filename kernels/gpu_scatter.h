// Adds what payloads change to elements that stand at places of their own in a GPU's memory, as an
// engine's parameters do; the addresses stay, so captured graphs do, too. Uses no CUDA types.
// Owner: whoever keeps that memory. Threads: one at a time. Cost on the device: 200 bytes a box; up
// to 1.25 times the largest update's payloads, and 32 bytes for each of its changed blocks. Errors:
// a GpuStatus; one from Load leaves the memory untouched. Without CUDA always kNotBuilt.
#pragma once

#include <memory>
#include <span>

#include "kernels/gpu.h"

namespace deltawire::kernels {

/// Elements of a tensor (copy.src_*, in its bytes) and where they stand (copy.dst_*, from
/// `memory`).
struct GpuBox {
  std::byte* memory = nullptr;  ///< on the device
  StridedCopy copy;
};

/// What changes in one chunk of a tensor.
struct GpuScatterItem {
  uint64_t first_byte = 0;  ///< of the chunk in its tensor
  uint32_t bytes = 0;       ///< as of GpuChunk
  uint32_t width = 1;
  uint32_t first_box = 0;  ///< the tensor's boxes, of those given to Create
  uint32_t boxes = 0;
  std::span<const Bytes> payloads;  ///< fast, each for the bytes that the one before leaves
};

/// Like all CUDA code here, it has not run on a device (docs/benchmarks.md#not-run-on-a-device).
class GpuScatter {
 public:
  /// REQUIRES: no two elements of boxes share a place, and places are aligned to their elements.
  /// kArgument for boxes in which a byte of the tensor cannot be found by division.
  static GpuStatus Create(int device, std::span<const GpuBox> boxes,
                          std::unique_ptr<GpuScatter>* scatter);
  ~GpuScatter();
  GpuScatter(const GpuScatter&) = delete;
  GpuScatter& operator=(const GpuScatter&) = delete;

  /// Brings the items to the device, in place of those of the last Load. The caller may drop its
  /// own. Allocates only for an update that is larger than all before. REQUIRES: the payloads were
  /// validated (their tables are checked once more); what was queued has been waited for.
  GpuStatus Load(std::span<const GpuScatterItem> items);
  /// Queues the additions on `stream`, a cudaStream_t of this device, or null for the default one;
  /// `backwards`: subtractions. Only the launch can still fail here.
  GpuStatus Queue(bool backwards, void* stream);
  /// Waits for `stream`. kDevice also if the device has found a payload malformed.
  GpuStatus Wait(void* stream);
  uint64_t device_bytes() const;

 private:
  struct Impl;
  explicit GpuScatter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deltawire::kernels
