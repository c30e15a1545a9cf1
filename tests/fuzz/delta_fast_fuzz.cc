// Fuzzes the decoders of fast payloads (validate, decode_apply, fold, negate) of every backend:
// nothing is read or written out of bounds, the backends agree bit for bit, and what validates is
// the one encoding of its delta and obeys the group's laws (a delta plus its negation is nothing, a
// delta folded with itself is the delta applied twice).
// Input: one byte (bits 0-4 shape, bit 5: described), then a payload, or changes and their damage.
#include <algorithm>
#include <span>

#include "tests/fuzz/delta_input.h"

namespace {

using namespace deltawire::kernels;  // NOLINT(google-build-using-namespace): one small program
using namespace deltawire::kernels::fuzz;  // NOLINT(google-build-using-namespace)

struct Chunk {
  const Backend& backend;
  unsigned width;
  Buffer data;
  uint64_t digest;

  // Applies a payload that must be sound, and checks the digest it brings forward.
  void Apply(Bytes payload, const char* what) {
    uint64_t after = 0;
    const DecodeStatus status = backend.decode_apply(Key(), payload, data, width, digest, &after);
    Require(status == DecodeStatus::kOk, what, backend);
    Require(after == backend.digest(Key(), data), "incremental digest equals a full one", backend);
    digest = after;
  }
};

using Sum = DecodeStatus (*)(const Backend&, Bytes, size_t, unsigned, MutableBytes, MutableBytes,
                             size_t*);

DecodeStatus Negate(const Backend& b, Bytes payload, size_t raw, unsigned width,
                    MutableBytes scratch, MutableBytes out, size_t* bytes) {
  return b.negate(payload, raw, width, scratch, out, bytes);
}

DecodeStatus FoldTwice(const Backend& b, Bytes payload, size_t raw, unsigned width,
                       MutableBytes scratch, MutableBytes out, size_t* bytes) {
  const std::array<Bytes, 2> both = {payload, payload};
  return b.fold(both, raw, width, scratch, out, bytes);
}

Buffer Run(const Backend& backend, Bytes payload, const Shape& shape, Sum sum, bool sound) {
  Buffer scratch(FoldScratchBytes(shape.width));
  Buffer out(MaxEncodedBytes(shape.bytes(), shape.width));
  size_t bytes = 0;
  const DecodeStatus status =
      sum(backend, payload, shape.bytes(), shape.width, scratch, out, &bytes);
  if (!sound) return {};
  Require(status == DecodeStatus::kOk, "a validated payload folds and negates", backend);
  Require(bytes <= out.size(), "output stays within MaxEncodedBytes", backend);
  out.resize(bytes);
  if (bytes != 0) {
    Require(backend.validate(out, shape.bytes(), shape.width, nullptr) == DecodeStatus::kOk,
            "output of fold or negate validates", backend);
  }
  return out;
}

void CheckLaws(const Backend& backend, const Shape& shape, Bytes payload, const Buffer& once) {
  const Buffer& base = Pattern(shape.bytes());
  const uint64_t base_digest = PatternDigest(backend, shape.bytes());
  const Buffer negated = Run(backend, payload, shape, Negate, true);
  const Buffer twice = Run(backend, payload, shape, FoldTwice, true);
  Require(std::ranges::equal(Diff(backend, base, once, shape.width), payload),
          "one delta has one encoding", backend);

  Chunk chunk{backend, shape.width, once, backend.digest(Key(), once)};
  chunk.Apply(payload, "a validated payload applies twice");
  const Buffer applied_twice = chunk.data;
  Require(!negated.empty(), "a validated payload changes something", backend);
  chunk.Apply(negated, "a negation applies");
  chunk.Apply(negated, "a negation applies twice");
  Require(chunk.data == base, "a delta and its negation cancel", backend);
  Require(chunk.digest == base_digest, "and so do their digests", backend);
  if (!twice.empty()) chunk.Apply(twice, "a fold applies");
  Require(chunk.data == applied_twice, "fold(d, d) equals applying d twice", backend);

  const std::array<Bytes, 2> both = {payload, negated};
  Buffer scratch(FoldScratchBytes(shape.width));
  Buffer out(MaxEncodedBytes(shape.bytes(), shape.width));
  size_t bytes = 1;
  const DecodeStatus status = backend.fold(both, shape.bytes(), shape.width, scratch, out, &bytes);
  Require(status == DecodeStatus::kOk && bytes == 0, "delta + negation folds to nothing", backend);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size == 0) return 0;
  Input in(bytes, size);
  const uint8_t head = in.Byte();
  const Shape shape = Shape::Of(head);
  Buffer payload;
  if ((head & 32) != 0) {
    payload = DescribedDelta(in, shape);
    Damage(in, payload);
  } else {
    payload = in.Take(size);
  }
  // Two backends do for a large chunk: the scalar one, and one that reads vectors.
  const std::array<const Backend*, 2> two = {&Scalar(), &Best()};
  const auto backends = shape.elements > kBlockElements ? std::span(two) : All();
  Buffer expected;
  uint64_t expected_changed = 0;
  const DecodeStatus expected_status =
      Scalar().validate(payload, shape.bytes(), shape.width, &expected_changed);
  const bool sound = expected_status == DecodeStatus::kOk;
  for (const Backend* backend : backends) {
    uint64_t changed = 0;
    const DecodeStatus status = backend->validate(payload, shape.bytes(), shape.width, &changed);
    Require(status == expected_status, "backends agree on what is valid", *backend);
    // Unvalidated bytes may be refused in part, but never reach out of bounds.
    Chunk chunk{*backend, shape.width, Pattern(shape.bytes()),
                PatternDigest(*backend, shape.bytes())};
    if (!sound) {
      uint64_t after = 0;
      (void)backend->decode_apply(Key(), payload, chunk.data, shape.width, chunk.digest, &after);
      Run(*backend, payload, shape, FoldTwice, false);
      Run(*backend, payload, shape, Negate, false);
      continue;
    }
    chunk.Apply(payload, "what validates applies");
    Require(changed == expected_changed, "backends agree on the change count", *backend);
    if (backend == &Scalar()) expected = chunk.data;
    Require(chunk.data == expected, "backends agree on the result", *backend);
    CheckLaws(*backend, shape, payload, chunk.data);
  }
  return 0;
}
