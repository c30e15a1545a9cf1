// Fuzzes the decoder of tight payloads of every backend, on chunks of up to 700 elements; see
// delta_tight_laws.h for what must hold.
// Input: one byte (bits 0-4 shape, bit 5: described), one (bits 0-2 class function, bits 4-7 depth
// of a described one), then a payload, or changes and their damage.
#include "tests/fuzz/delta_tight_laws.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace deltawire::kernels;  // NOLINT(google-build-using-namespace): one small program
  if (size < 2) return 0;
  const auto backends = fuzz::TwoBackends(bytes, size);
  fuzz::Input in(bytes, size);
  const uint8_t head = in.Byte(), more = in.Byte();
  const auto subject =
      fuzz::SubjectOf(fuzz::Shape::Small(head), static_cast<ClassFunction>(more & 7));
  const size_t depth = std::min<size_t>(more >> 4, kMaxHistory);
  fuzz::CheckTight(backends, subject,
                   fuzz::TightPayload(backends, subject, in, (head & 32) != 0, depth));
  return 0;
}
