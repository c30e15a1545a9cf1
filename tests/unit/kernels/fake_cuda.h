// Knobs of the pretended CUDA runtime (fake_cuda.cc). One thread.
#pragma once

namespace deltawire::kernels::test {

/// The call after the next `calls` ones that can fail does; negative: none. It fails once.
void FailCudaCallIn(int calls);
/// Calls so far that could have failed.
int CudaCalls();
/// What the device gets wrong from now on, in one chunk of every batch of a diff.
enum class Wrong { kNothing, kDigest, kPayload, kChanged };
void PlantWrong(Wrong what, unsigned chunk);
/// No host memory can be pinned; or it can, but no kernel reaches it.
void RefusePinning(bool refuse);
void RefuseMapping(bool refuse);
/// Device and pinned memory that nobody has freed.
int CudaAllocations();
/// Host memory that is registered, and strided copies that have run, until now.
int CudaRegistrations();
int CudaPlacements();

}  // namespace deltawire::kernels::test
