// The suite gpu on the pretended CUDA runtime. DELTAWIRE_PRETEND_WRONG=payload: the device gets one
// payload of every batch wrong.
#include <cstdlib>
#include <string_view>

#include "bench/gpu/suite.h"
#include "tests/unit/kernels/fake_cuda.h"

int main(int argc, char** argv) {
  using namespace deltawire::kernels::test;
  const char* const wrong = std::getenv("DELTAWIRE_PRETEND_WRONG");
  if (wrong != nullptr && wrong == std::string_view("payload")) PlantWrong(Wrong::kPayload, 0);
  return deltawire::bench::RunGpuSuite(argc, argv);
}
