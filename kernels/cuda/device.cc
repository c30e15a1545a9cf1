// The implementation of devices, device memory, pins and place of kernels/gpu.h.
#include <map>
#include <mutex>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/place_plan.h"

namespace deltawire::kernels {
namespace gpu {

GpuStatus Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();
  GpuError kind = GpuError::kDevice;
  switch (error) {
    case cudaErrorMemoryAllocation:
      kind = GpuError::kMemory;
      break;
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInitializationError:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
      kind = GpuError::kNoDevice;
      break;
    default:
      break;
  }
  return {kind, std::string("CUDA: ") + what + ": " + cudaGetErrorString(error) + " (" +
                    cudaGetErrorName(error) + ")"};
}

void Ignore(cudaError_t error) {
  if (error != cudaSuccess) (void)cudaGetLastError();
}

namespace {

using AskState = int(int device, unsigned* flags, int* active);  // a function of CUDA's driver

AskState* FindAskState() {
  constexpr const char* kName = "cuDevicePrimaryCtxGetState";
  void* found = nullptr;
  cudaDriverEntryPointQueryResult how = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  Ignore(cudaGetDriverEntryPointByVersion(kName, &found, 12000, cudaEnableDefault, &how));
#else
  Ignore(cudaGetDriverEntryPoint(kName, &found, cudaEnableDefault, &how));
#endif
  return how == cudaDriverEntryPointSuccess ? reinterpret_cast<AskState*>(found) : nullptr;
}

/// Returns whether this process has used the device; true when the driver does not tell.
bool HasContext(int device) {
  static AskState* const ask = FindAskState();
  unsigned flags = 0;
  int active = 1;
  return ask == nullptr || ask(device, &flags, &active) != 0 || active != 0;
}

}  // namespace

OnDevice::OnDevice(int device) : device_(device) {
  Ignore(cudaGetDevice(&before_));
  status_ = Check(cudaSetDevice(device), "choosing the device");
}

OnDevice::~OnDevice() {
  if (before_ != device_ && HasContext(before_)) Ignore(cudaSetDevice(before_));
}

}  // namespace gpu

using gpu::Check;
using gpu::Ignore;

namespace {

/// Formats CUDA's version number, which is 1000 * major + 10 * minor.
std::string VersionText(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

/// CUDA reports a machine without a driver as one whose driver is too old.
GpuStatus NoUsableDriver() {
  int driver = 0, runtime = 0;
  Ignore(cudaDriverGetVersion(&driver));
  Ignore(cudaRuntimeGetVersion(&runtime));
  if (driver == 0) return {GpuError::kNoDevice, "CUDA: this machine has no NVIDIA driver"};
  return {GpuError::kOldDriver, "CUDA: the NVIDIA driver here knows CUDA " + VersionText(driver) +
                                    " at most, and this program has " + VersionText(runtime) +
                                    "; install a newer driver, or build deltawire with nvcc " +
                                    VersionText(driver)};
}

}  // namespace

GpuStatus FindGpu(int device, GpuInfo* info) {
  int devices = 0;
  const cudaError_t counted = cudaGetDeviceCount(&devices);
  if (counted == cudaErrorInsufficientDriver) {
    Ignore(counted);
    return NoUsableDriver();
  }
  DW_GPU_RETURN_IF_ERROR(Check(counted, "looking for devices"));
  if (device < 0 || device >= devices) {
    return {GpuError::kNoDevice, "CUDA: there is no device " + std::to_string(device)};
  }
  cudaDeviceProp properties;
  DW_GPU_RETURN_IF_ERROR(
      Check(cudaGetDeviceProperties(&properties, device), "a device's properties"));
  if (properties.major < 8) {
    return {GpuError::kNoDevice, std::string("CUDA: ") + properties.name +
                                     " is older than what the code needs (compute capability 8.0)"};
  }
  *info = {properties.name, properties.totalGlobalMem, properties.major, properties.minor};
  return {};
}

GpuStatus GpuMemory(int device, uint64_t* free_bytes, uint64_t* total_bytes) {
  const gpu::OnDevice here(device);
  DW_GPU_RETURN_IF_ERROR(here.status());
  size_t free_now = 0, total = 0;
  DW_GPU_RETURN_IF_ERROR(Check(cudaMemGetInfo(&free_now, &total), "asking for free memory"));
  *free_bytes = free_now;
  *total_bytes = total;
  return {};
}

GpuStatus GpuBuffer::Create(size_t bytes, std::unique_ptr<GpuBuffer>* buffer) {
  void* memory = nullptr;
  DW_GPU_RETURN_IF_ERROR(Check(cudaMalloc(&memory, bytes == 0 ? 1 : bytes), "device memory"));
  buffer->reset(new GpuBuffer(MutableBytes(static_cast<std::byte*>(memory), bytes)));
  return {};
}

GpuBuffer::~GpuBuffer() { Ignore(cudaFree(bytes_.data())); }

GpuStatus GpuCopy(MutableBytes to, Bytes from) {
  if (to.size() != from.size()) return {GpuError::kArgument, "a copy between unequal sizes"};
  if (to.empty()) return {};
  DW_GPU_RETURN_IF_ERROR(
      Check(cudaMemcpyAsync(to.data(), from.data(), to.size(), cudaMemcpyDefault), "a copy"));
  return Check(cudaDeviceSynchronize(), "a copy");
}

GpuStatus GpuPlace(std::span<const StridedCopy> copies, Bytes src, MutableBytes dst,
                   const Convert& convert) {
  const auto* from = reinterpret_cast<const uint8_t*>(src.data());
  auto* to = reinterpret_cast<uint8_t*>(dst.data());
  for (const StridedCopy& copy : copies) {
    DW_GPU_RETURN_IF_ERROR(gpu::Start("starting a strided copy", [&] {
      gpu::LaunchPlace(gpu::PlanPlace(copy, convert, reinterpret_cast<uintptr_t>(from),
                                      reinterpret_cast<uintptr_t>(to)),
                       from, to, nullptr);
    }));
  }
  return Check(cudaDeviceSynchronize(), "a strided copy");
}

namespace {

/// The pins of this process, shared because CUDA does not register memory twice.
struct Pins {
  std::mutex mu;
  std::map<std::pair<const std::byte*, size_t>, int> holders;
};

Pins& AllPins() {
  static Pins& pins = *new Pins;  // never destroyed: static objects may hold pins
  return pins;
}

}  // namespace

GpuStatus GpuPin::Create(Bytes memory, std::unique_ptr<GpuPin>* pin) {
  Pins& pins = AllPins();
  const std::lock_guard lock(pins.mu);
  const std::pair key(memory.data(), memory.size());
  if (!pins.holders.contains(key)) {
    DW_GPU_RETURN_IF_ERROR(
        Check(cudaHostRegister(const_cast<std::byte*>(memory.data()), memory.size(),
                               cudaHostRegisterPortable | cudaHostRegisterMapped),
              "pinning memory"));
  }
  ++pins.holders[key];
  pin->reset(new GpuPin(memory));
  return {};
}

GpuPin::~GpuPin() {
  Pins& pins = AllPins();
  const std::lock_guard lock(pins.mu);
  const auto held = pins.holders.find({memory_.data(), memory_.size()});
  if (--held->second > 0) return;
  pins.holders.erase(held);
  Ignore(cudaHostUnregister(const_cast<std::byte*>(memory_.data())));
}

}  // namespace deltawire::kernels
