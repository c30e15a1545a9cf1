// The laws of fast payloads to which the fuzz targets hold every backend. A Chunk owns its bytes,
// for one input. Threads: one. Cost: a few passes over the input's chunk for each backend. Errors:
// Require names the broken law and the backend, and aborts.
#pragma once

#include <algorithm>
#include <span>

#include "tests/fuzz/delta_input.h"

namespace deltawire::kernels::fuzz {

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

inline DecodeStatus Negate(const Backend& b, Bytes payload, size_t raw, unsigned width,
                           MutableBytes scratch, MutableBytes out, size_t* bytes) {
  return b.negate(payload, raw, width, scratch, out, bytes);
}

inline DecodeStatus FoldTwice(const Backend& b, Bytes payload, size_t raw, unsigned width,
                              MutableBytes scratch, MutableBytes out, size_t* bytes) {
  const std::array<Bytes, 2> both = {payload, payload};
  return b.fold(both, raw, width, scratch, out, bytes);
}

inline Buffer RunSum(const Backend& backend, Bytes payload, const Shape& shape, Sum sum,
                     bool sound) {
  const MutableBytes scratch = FoldScratch(shape.width);
  Buffer out(MaxEncodedBytes(shape.bytes(), shape.width));
  size_t bytes = 0;
  const DecodeStatus status =
      sum(backend, payload, shape.bytes(), shape.width, scratch, out, &bytes);
  if (!sound) return {};
  Require(status == DecodeStatus::kOk, "a validated payload folds and negates", backend);
  Require(bytes <= out.size(), "output stays within MaxEncodedBytes", backend);
  out.resize(bytes);
  if (&backend != &Scalar()) {
    Require(out == RunSum(Scalar(), payload, shape, sum, true), "backends sum alike", backend);
    return out;
  }
  if (bytes != 0) {
    Require(backend.validate(out, shape.bytes(), shape.width, nullptr) == DecodeStatus::kOk,
            "output of fold or negate validates", backend);
  }
  return out;
}

inline void CheckLaws(const Backend& backend, const Shape& shape, Bytes payload,
                      const Buffer& once) {
  const Buffer& base = Pattern(shape.bytes());
  const uint64_t base_digest = PatternDigest(backend, shape.bytes());
  const Buffer negated = RunSum(backend, payload, shape, Negate, true);
  const Buffer twice = RunSum(backend, payload, shape, FoldTwice, true);
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
  const MutableBytes scratch = FoldScratch(shape.width);
  Buffer out(MaxEncodedBytes(shape.bytes(), shape.width));
  size_t bytes = 1;
  const DecodeStatus status = backend.fold(both, shape.bytes(), shape.width, scratch, out, &bytes);
  Require(status == DecodeStatus::kOk && bytes == 0, "delta + negation folds to nothing", backend);
}

/// Takes any bytes as a payload. The backends must agree bit for bit. A payload that validates must
/// be the only encoding of its delta, and obey the laws. One that does not validate may give
/// anything, but must not make a backend read or write out of bounds.
inline void CheckFast(std::span<const Backend* const> backends, const Shape& shape,
                      const Buffer& payload) {
  Buffer expected;
  uint64_t expected_changed = 0;
  const DecodeStatus expected_status =
      Scalar().validate(payload, shape.bytes(), shape.width, &expected_changed);
  const bool sound = expected_status == DecodeStatus::kOk;
  for (const Backend* backend : backends) {
    uint64_t changed = 0;
    const DecodeStatus status = backend->validate(payload, shape.bytes(), shape.width, &changed);
    Require(status == expected_status, "backends agree on what is valid", *backend);
    Chunk chunk{*backend, shape.width, Pattern(shape.bytes()),
                PatternDigest(*backend, shape.bytes())};
    if (!sound) {
      uint64_t after = 0;
      (void)backend->decode_apply(Key(), payload, chunk.data, shape.width, chunk.digest, &after);
      RunSum(*backend, payload, shape, FoldTwice, false);
      RunSum(*backend, payload, shape, Negate, false);
      continue;
    }
    chunk.Apply(payload, "what validates applies");
    Require(changed == expected_changed, "backends agree on the change count", *backend);
    if (expected.empty()) expected = chunk.data;
    Require(chunk.data == expected, "backends agree on the result", *backend);
    // The oracle need not be checked beside another backend, whose results equal the oracle's byte
    // for byte.
    if (backend != &Scalar() || backends.back() == &Scalar()) {
      CheckLaws(*backend, shape, payload, chunk.data);
    }
  }
}

/// The payload in the rest of the input: its bytes as they are, or, if `described`, a delta of the
/// changes that it describes, with the damage that it describes.
inline Buffer FastPayload(Input& in, const Shape& shape, bool described) {
  if (!described) return in.Take(SIZE_MAX);
  Buffer payload = DescribedDelta(in, shape);
  Damage(in, payload);
  return payload;
}

}  // namespace deltawire::kernels::fuzz
