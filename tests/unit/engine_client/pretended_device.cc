// What a test in Python needs of the pretended CUDA runtime that stands behind the engine library
// in its process (fake_cuda.cc, tests/python/engine_device_test.py). Exported beside the C ABI.
// Owner: the test. Threads: one. Cost: none. Errors: null, or another number than 0.
#include <cuda_runtime_api.h>

#include "receiver/engine_client/abi/deltawire_engine.h"
#include "tests/unit/kernels/fake_cuda.h"

extern "C" {

DW_ENGINE_API void* dw_engine_pretended_allocate(int device, size_t bytes) {
  const deltawire::kernels::test::OnFakeDevice here(device);
  void* memory = nullptr;
  return cudaMalloc(&memory, bytes) == cudaSuccess ? memory : nullptr;
}
DW_ENGINE_API void dw_engine_pretended_free(void* memory) { (void)cudaFree(memory); }
/// Of either kind of memory to either.
DW_ENGINE_API int dw_engine_pretended_copy(void* to, const void* from, size_t bytes) {
  return cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
}
DW_ENGINE_API void* dw_engine_pretended_stream(int device) {
  const deltawire::kernels::test::OnFakeDevice here(device);
  cudaStream_t stream = nullptr;
  return cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess ? stream
                                                                                  : nullptr;
}
/// As FailCudaCallIn.
DW_ENGINE_API void dw_engine_pretended_fail_in(int calls) {
  deltawire::kernels::test::FailCudaCallIn(calls);
}

}  // extern "C"
