// Fuzzes fast and tight payloads of chunks of up to three blocks, whose tables have several rows
// and whose payloads have several groups. The larger chunks make it slower than the other targets.
// Input: as for delta_tight_fuzz.cc; with bit 6 of the first byte a tight payload, else a fast one.
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
