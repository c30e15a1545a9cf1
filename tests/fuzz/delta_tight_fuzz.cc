// Fuzzes the decoder of tight payloads, given fixed old bytes and eight deltas of history: every
// backend refuses or accepts the same, nothing is read or written out of bounds, and what is
// accepted is a valid delta whose own tight payload decodes to it again.
// Input: one byte (bits 0-4 shape, bit 5: described), one (bits 0-2 class function, bits 4-7 depth
// of a described one), then a payload, or changes and their damage.
#include <algorithm>
#include <span>

#include "tests/fuzz/delta_input.h"

namespace {

using namespace deltawire::kernels;  // NOLINT(google-build-using-namespace): one small program
using namespace deltawire::kernels::fuzz;  // NOLINT(google-build-using-namespace)

/// Old bytes are the pattern; the past is made up: the deltas need not have led there.
std::vector<Buffer> MakePast(const Shape& shape) {
  std::vector<Buffer> past;
  const Buffer zeros(shape.bytes());
  uint64_t state = shape.bytes();
  for (size_t k = 0; k < kMaxHistory; ++k) {
    Buffer data = zeros;
    for (size_t i = 0; i < data.size(); ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      if (state >> 61 == 0) data[i] = static_cast<std::byte>((state >> 40 & 3) - 1);
    }
    past.push_back(k == 4 ? Buffer() : Diff(Scalar(), zeros, data, shape.width));
  }
  return past;
}

const std::vector<Buffer>& PastOf(const Shape& shape) {
  static std::map<std::pair<unsigned, size_t>, std::vector<Buffer>> made;
  std::vector<Buffer>& past = made[{shape.width, shape.elements}];
  if (past.empty()) past = MakePast(shape);
  return past;
}

bool Fits(ClassFunction f, unsigned width) {
  switch (f) {
    case ClassFunction::kBF16:
    case ClassFunction::kF16:
      return width == 2;
    case ClassFunction::kF32:
      return width == 4;
    case ClassFunction::kF8E4M3:
    case ClassFunction::kF8E5M2:
      return width == 1;
    case ClassFunction::kNone:
      return true;
  }
  return false;
}

struct Subject {
  Shape shape;
  ClassFunction function = ClassFunction::kNone;
  std::array<Bytes, kMaxHistory> deltas;
  MutableBytes scratch;

  History Past(size_t depth) const { return {std::span(deltas).first(depth), 0x01020304}; }

  /// Empty where it would not be smaller than `fast`.
  Buffer Encode(const Backend& backend, const Buffer& fast, size_t depth) const {
    Buffer out(fast.size());
    size_t bytes = 0;
    const DecodeStatus status = backend.tight_encode(Pattern(shape.bytes()), fast, shape.width,
                                                     function, Past(depth), scratch, out, &bytes);
    Require(status == DecodeStatus::kOk, "a valid payload is encoded", backend);
    Require(bytes < fast.size(), "tight is smaller than fast", backend);
    return Buffer(out.begin(), out.begin() + static_cast<ptrdiff_t>(bytes));
  }

  /// The fast payload; empty where `tight` is refused.
  Buffer Decode(const Backend& backend, const Buffer& tight, DecodeStatus* status) const {
    Buffer out(MaxEncodedBytes(shape.bytes(), shape.width));
    size_t bytes = 0;
    *status = backend.tight_decode(Pattern(shape.bytes()), tight, shape.width, Past(kMaxHistory),
                                   scratch, out, &bytes);
    if (*status != DecodeStatus::kOk) return {};
    Require(bytes <= out.size(), "a payload stays within MaxEncodedBytes", backend);
    return Buffer(out.begin(), out.begin() + static_cast<ptrdiff_t>(bytes));
  }
};

/// What a backend makes of an accepted payload's delta must lead to the same delta.
void CheckAgain(const Subject& s, const Backend& backend, const Buffer& fast) {
  Require(backend.validate(fast, s.shape.bytes(), s.shape.width, nullptr) == DecodeStatus::kOk,
          "a decoded payload validates", backend);
  for (const size_t depth : {size_t{0}, kMaxHistory}) {
    const Buffer tight = s.Encode(backend, fast, depth);
    if (tight.empty()) continue;
    TightHead head;
    Require(ReadTightHead(tight, &head) == DecodeStatus::kOk, "its head can be read", backend);
    Require(head.depth == depth && head.function == s.function, "as it was made", backend);
    DecodeStatus status;
    Require(s.Decode(backend, tight, &status) == fast, "encoded and decoded it is itself", backend);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size < 2) return 0;
  static Buffer scratch(kTightScratchBytes);
  Input in(bytes, size);
  const uint8_t head = in.Byte(), more = in.Byte();
  Subject s{Shape::Of(head), static_cast<ClassFunction>(more & 7), {}, scratch};
  if ((more & 7) > 5 || !Fits(s.function, s.shape.width)) s.function = ClassFunction::kNone;
  const std::vector<Buffer>& past = PastOf(s.shape);
  std::ranges::copy(past, s.deltas.begin());

  Buffer tight;
  if ((head & 32) != 0) {
    const Buffer fast = DescribedDelta(in, s.shape);
    if (fast.empty()) return 0;
    const size_t depth = std::min<size_t>(more >> 4, kMaxHistory);
    tight = s.Encode(Scalar(), fast, depth);
    for (const Backend* backend : All()) {
      if (backend == &Scalar()) continue;
      Require(s.Encode(*backend, fast, depth) == tight, "backends encode alike", *backend);
    }
    if (tight.empty()) return 0;
    const bool intact = in.empty();
    Damage(in, tight);
    DecodeStatus status;
    if (intact) Require(s.Decode(Scalar(), tight, &status) == fast, "it decodes again", Scalar());
  } else {
    tight = in.Take(size);
  }
  TightHead parsed;
  const DecodeStatus head_status = ReadTightHead(tight, &parsed);
  DecodeStatus expected_status;
  const Buffer expected = s.Decode(Scalar(), tight, &expected_status);
  if (expected_status == DecodeStatus::kOk) {
    Require(head_status == DecodeStatus::kOk, "the head of a sound payload reads", Scalar());
    CheckAgain(s, Scalar(), expected);
  }
  for (const Backend* backend : All()) {
    if (backend == &Scalar()) continue;
    DecodeStatus status;
    Require(s.Decode(*backend, tight, &status) == expected, "backends agree on the result",
            *backend);
    Require(status == expected_status, "backends agree on what is valid", *backend);
    if (status == DecodeStatus::kOk) CheckAgain(s, *backend, expected);
  }
  return 0;
}
