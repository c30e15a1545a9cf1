// Owners of CUDA memory and streams, and CUDA's errors as GpuStatus. An Array owns device memory or
// pinned host memory. Errors of Make and Check name the attempt and CUDA's answer, and clear CUDA's
// own record.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "kernels/gpu.h"

namespace deltawire::kernels::gpu {

GpuStatus Check(cudaError_t error, const char* what);
/// Clears an error without a caller from CUDA's record. Otherwise this thread's next call would
/// find it there and report it as its own.
void Ignore(cudaError_t error);
/// Starts a kernel by `launch`. Only CUDA's record has its result, so earlier errors are cleared
/// first.
template <typename F>
GpuStatus Start(const char* what, F launch) {
  (void)cudaGetLastError();
  launch();
  return Check(cudaGetLastError(), what);
}

#define DW_GPU_RETURN_IF_ERROR(expression)                                         \
  do {                                                                             \
    if (::deltawire::kernels::GpuStatus dw_status = (expression); !dw_status.ok()) \
      return dw_status;                                                            \
  } while (false)

/// Makes `device` the thread's current device for the object's lifetime, then restores the previous
/// one, since the trainer may use another device. It does not restore a device that this process
/// has not used yet: that would create a context there, which takes hundreds of MB, and device 0 is
/// the initial one of every new thread.
class OnDevice {
 public:
  explicit OnDevice(int device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  const GpuStatus& status() const { return status_; }

 private:
  const int device_;
  int before_ = 0;
  GpuStatus status_;
};

enum class Where { kDevice, kPinned };

template <typename T, Where kWhere>
class Array {
 public:
  Array() = default;
  Array(Array&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Array& operator=(Array&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Array() {
    if (data_ == nullptr) return;
    Ignore(kWhere == Where::kDevice ? cudaFree(data_) : cudaFreeHost(data_));
  }

  /// Makes room for at least `size` values. If it has to grow, the content is lost, and it
  /// allocates a quarter more, so that it rarely does: freeing waits for all work on the device.
  GpuStatus Reserve(size_t size) {
    if (size <= size_) return {};
    *this = Array();
    return Make(size + size / 4);
  }
  GpuStatus Make(size_t size) {
    Array made;
    void* memory = nullptr;
    if (size != 0) {
      const size_t bytes = size * sizeof(T);
      DW_GPU_RETURN_IF_ERROR(kWhere == Where::kDevice
                                 ? Check(cudaMalloc(&memory, bytes), "device memory")
                                 : Check(cudaMallocHost(&memory, bytes), "pinned host memory"));
    }
    made.data_ = static_cast<T*>(memory);
    made.size_ = size;
    *this = std::move(made);
    return {};
  }
  T* data() const { return data_; }
  size_t size() const { return size_; }
  T& operator[](size_t i) const { return data_[i]; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

template <typename T>
using DeviceArray = Array<T, Where::kDevice>;
template <typename T>
using PinnedArray = Array<T, Where::kPinned>;

class Stream {
 public:
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() {
    if (stream_ != nullptr) Ignore(cudaStreamDestroy(stream_));
  }
  GpuStatus Make() {
    return Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
  }
  cudaStream_t get() const { return stream_; }
  GpuStatus Wait() const { return Check(cudaStreamSynchronize(stream_), "work on the device"); }
  GpuStatus Copy(void* to, const void* from, size_t bytes) const {
    if (bytes == 0) return {};
    return Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "a copy");
  }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Queues a copy as Backend::place_convert, from `from` to `to`. The copy engine runs those without
/// dimensions, since it needs no processors.
GpuStatus QueuePlace(const StridedCopy& copy, const Convert& convert, const uint8_t* from,
                     uint8_t* to, const Stream& stream);

}  // namespace deltawire::kernels::gpu
