// Knobs of the pretended CUDA runtime (fake_cuda.cc). One thread.
#pragma once

namespace deltawire::kernels::test {

/// The call after the next `calls` ones that can fail does; negative: none. It fails once.
void FailCudaCallIn(int calls);
/// Device and pinned memory that nobody has freed.
int CudaAllocations();

}  // namespace deltawire::kernels::test
