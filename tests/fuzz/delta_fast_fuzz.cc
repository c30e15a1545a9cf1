// Fuzzes the decoders of fast payloads (validate, decode_apply, fold, negate) of the backends, on
// chunks of up to 700 elements; see delta_fast_laws.h for what must hold.
// Input: one byte (bits 0-4 shape, bit 5: described), then a payload, or changes and their damage.
#include "tests/fuzz/delta_fast_laws.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace deltawire::kernels;  // NOLINT(google-build-using-namespace): one small program
  if (size == 0) return 0;
  const auto backends = fuzz::TwoBackends(bytes, size);
  fuzz::Input in(bytes, size);
  const uint8_t head = in.Byte();
  const auto shape = fuzz::Shape::Small(head);
  fuzz::CheckFast(backends, shape, fuzz::FastPayload(in, shape, (head & 32) != 0));
  return 0;
}
