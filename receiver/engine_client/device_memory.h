// The access to an engine's memory on a GPU: runs of a chunk by way of pinned memory, and deltas by
// a kernel on the engine's own stream. A BoundMemory owns it, and one thread at a time uses it. It
// takes pinned memory for one chunk, and on the device the boxes and the loaded payloads. Fetch and
// Store keep their first error for TakeStatus; after an error their bytes mean nothing.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "kernels/gpu_scatter.h"
#include "receiver/engine_client/layout_program.h"

namespace deltawire::engine {

class DeviceMemory {
 public:
  /// Whether this program can use the device. kUnimplemented without CUDA.
  static Status Find(int device);
  /// `memory`: by storage. `stream`: a cudaStream_t of the device on which the engine computes, or
  /// null for the default one. `tensors`: of the program. `chunk_bytes`: of the largest chunk.
  static StatusOr<std::unique_ptr<DeviceMemory>> Create(int device, void* stream,
                                                        const LayoutProgram& program,
                                                        size_t tensors,
                                                        std::vector<std::byte*> memory,
                                                        size_t chunk_bytes);

  /// Copies the bytes that a box has of the tensor's [begin, end), each to its distance from
  /// `begin`, and returns where they are until the next call. The bytes between them mean nothing.
  std::byte* Fetch(const OrderedBox& box, uint64_t begin, uint64_t end);
  /// Writes back what the last Fetch has copied. REQUIRES: the same arguments.
  void Store(const OrderedBox& box, uint64_t begin, uint64_t end);
  /// The first error of Fetch and Store since the last call.
  Status TakeStatus();

  /// A chunk's deltas, in order.
  struct Change {
    uint32_t tensor = 0;
    uint64_t first_byte = 0;  ///< of the chunk in the tensor
    uint32_t bytes = 0;
    uint32_t width = 1;
    std::span<const Bytes> payloads;  ///< validated
  };
  /// Brings the changes to the device and drops those of the last Load.
  Status Load(std::span<const Change> changes);
  /// Adds what was loaded to the memory, or subtracts it, after all that the engine has queued.
  Status Add(bool backwards);

 private:
  DeviceMemory(void* stream, const LayoutProgram& program, std::vector<std::byte*> memory);
  void Move(const OrderedBox& box, uint64_t begin, uint64_t end, bool fetch);

  void* const stream_;
  const LayoutProgram& program_;
  const std::vector<std::byte*> memory_;
  std::unique_ptr<std::byte[]> staging_;
  std::unique_ptr<kernels::GpuQueue> queue_;
  std::unique_ptr<kernels::GpuPin> pin_;
  MutableBytes mapped_;  // the staging, as kernels reach it
  std::unique_ptr<kernels::GpuScatter> scatter_;
  std::vector<kernels::StridedCopy> pieces_;
  Status status_;
};

}  // namespace deltawire::engine
