// Controls of the fake CUDA runtime (fake_cuda.cc): which call fails, what the device gets wrong,
// what is left allocated. Its state is global and lasts until the process ends. Threads: one.
// Errors: none.
#pragma once

#include <cstddef>

namespace deltawire::kernels::test {

/// Of the calls that can fail, lets `calls` succeed and the next one fail, once. Negative: none
/// fails.
void FailCudaCallIn(int calls);
/// Whether the next failure sticks, as that of a kernel that touched what it may not: every call
/// fails from then on, and no work runs. False: also ends that, as only a new process does.
void StickCudaErrors(bool stick);
/// Draws anew when queued work runs.
void SeedCuda(unsigned seed);
/// How many calls so far could have failed.
int CudaCalls();
/// From now on the device gets this wrong in one chunk of every diff's batches.
enum class Wrong { kNothing, kDigest, kPayload, kChanged };
void PlantWrong(Wrong what, unsigned chunk);
/// RefusePinning: no host memory can be registered. RefuseMapping: it can be, but no kernel reaches
/// it.
void RefusePinning(bool refuse);
void RefuseMapping(bool refuse);
/// While it holds, a call that registers host memory waits, as that of a large half does.
void HoldPinning(bool hold);
/// How many blocks of device and pinned memory have not been freed.
int CudaAllocations();
/// How many pieces of host memory are registered now, and how many strided copies have run so far.
int CudaRegistrations();
/// Whether any of these bytes is registered now.
bool CudaRegistered(const void* memory, size_t bytes);
int CudaPlacements();
/// Lets so many allocations succeed, and the next one fail for lack of memory; with `lasting` all
/// later ones too, of memory of that kind. Negative: none fails. Returns how many have failed since
/// the last call.
enum class Lack { kOnce, kDevice, kPinned, kAll };
int LackCudaMemoryIn(int allocations, Lack lack);
/// Flips a bit in every copy of these bytes in device or pinned memory but the one at `keep`.
/// Returns how many there were.
int FlipCudaCopies(const void* bytes, size_t size, const void* keep);
/// How many bytes of device and of pinned memory are allocated.
size_t CudaBytes();
/// From now on so much of a device's 8 GiB is free; 0: 3 GiB, as at the start.
void PretendFreeMemory(size_t bytes);
/// How many blocks of device memory were allocated so far.
int CudaDeviceAllocations();
/// The machine's driver: the newest CUDA that it knows, as 1000 * major + 10 * minor; 0: there is
/// no driver. By default it knows the runtime's.
void PretendDriver(int version);
/// Whether a device was used since EndCudaContexts. Choosing it is use enough.
bool HasCudaContext(int device);
void EndCudaContexts();

/// What is allocated while it lives is memory of this device, 0 or 1.
class OnFakeDevice {
 public:
  explicit OnFakeDevice(int device);
  ~OnFakeDevice();
  OnFakeDevice(const OnFakeDevice&) = delete;
  OnFakeDevice& operator=(const OnFakeDevice&) = delete;
};

}  // namespace deltawire::kernels::test
