// Fuzzes fast and tight payloads of chunks of several blocks, where tables have rows and groups are
// many; slower than the other targets for it.
// Input: as for delta_tight_fuzz.cc; bit 6 of the first byte: tight.
#include "tests/fuzz/delta_fast_laws.h"
#include "tests/fuzz/delta_tight_laws.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace deltawire::kernels;  // NOLINT(google-build-using-namespace): one small program
  if (size < 2) return 0;
  fuzz::Input in(bytes, size);
  const uint8_t head = in.Byte(), more = in.Byte();
  const auto shape = fuzz::Shape::Large(head);
  const bool described = (head & 32) != 0;
  const auto backends = fuzz::TwoBackends(bytes, size);
  if ((head & 64) == 0) {
    fuzz::CheckFast(backends, shape, fuzz::FastPayload(in, shape, described));
    return 0;
  }
  const auto subject = fuzz::SubjectOf(shape, static_cast<ClassFunction>(more & 7));
  const size_t depth = std::min<size_t>(more >> 4, kMaxHistory);
  fuzz::CheckTight(backends, subject, fuzz::TightPayload(backends, subject, in, described, depth));
  return 0;
}
