// The laws of tight payloads to which the fuzz targets hold every backend, for fixed old bytes and
// eight deltas of history, which are made once for each shape and kept. Threads: one. Cost: a few
// passes over the input's chunk for each backend. Errors: Require names the broken law, and aborts.
#pragma once

#include <algorithm>
#include <span>

#include "tests/fuzz/delta_input.h"

namespace deltawire::kernels::fuzz {

/// Makes the history. Its deltas did not lead to the old bytes, which are Pattern: the codec does
/// not look whether they did.
inline std::vector<Buffer> MakePast(const Shape& shape) {
  std::vector<Buffer> past;
  const Buffer zeros(shape.bytes());
  uint64_t state = shape.bytes();
  for (size_t k = 0; k < kMaxHistory; ++k) {
    Buffer data = zeros;
    for (size_t i = 0; i < data.size(); ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      if (state >> 58 == 0) data[i] = static_cast<std::byte>((state >> 40 & 3) - 1);
    }
    past.push_back(k == 4 ? Buffer() : Diff(Scalar(), zeros, data, shape.width));
  }
  return past;
}

inline const std::vector<Buffer>& PastOf(const Shape& shape) {
  static std::map<std::pair<unsigned, size_t>, std::vector<Buffer>> made;
  std::vector<Buffer>& past = made[{shape.width, shape.elements}];
  if (past.empty()) past = MakePast(shape);
  return past;
}

inline bool Fits(ClassFunction f, unsigned width) {
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

/// Encodes the delta of an accepted payload again, which must decode to the same delta.
inline void CheckAgain(const Subject& s, const Backend& backend, const Buffer& fast) {
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

inline Subject SubjectOf(const Shape& shape, ClassFunction function) {
  static Buffer scratch(kTightScratchBytes);
  Subject s{shape, Fits(function, shape.width) ? function : ClassFunction::kNone, {}, scratch};
  std::ranges::copy(PastOf(shape), s.deltas.begin());
  return s;
}

/// Takes any bytes as a tight payload. Every backend must accept or refuse it alike; if it is
/// accepted, its delta is valid, and the delta's own tight payload decodes to it again.
inline void CheckTight(std::span<const Backend* const> backends, const Subject& s,
                       const Buffer& tight) {
  TightHead head;
  const DecodeStatus head_status = ReadTightHead(tight, &head);
  DecodeStatus expected_status;
  const Buffer expected = s.Decode(Scalar(), tight, &expected_status);
  const bool sound = expected_status == DecodeStatus::kOk;
  if (sound) Require(head_status == DecodeStatus::kOk, "a sound payload's head reads", Scalar());
  for (const Backend* backend : backends) {
    DecodeStatus status;
    Require(s.Decode(*backend, tight, &status) == expected, "backends agree on the result",
            *backend);
    Require(status == expected_status, "backends agree on what is valid", *backend);
    if (sound) CheckAgain(s, *backend, expected);
  }
}

/// The payload in the rest of the input: its bytes as they are, or, if `described`, a delta of the
/// changes that it describes, with the damage that it describes. Every backend must encode that
/// delta alike. Empty where the changes cancel or tight is no smaller than fast.
inline Buffer TightPayload(std::span<const Backend* const> backends, const Subject& s, Input& in,
                           bool described, size_t depth) {
  if (!described) return in.Take(SIZE_MAX);
  const Buffer fast = DescribedDelta(in, s.shape);
  if (fast.empty()) return {};
  Buffer tight = s.Encode(Scalar(), fast, depth);
  for (const Backend* backend : backends) {
    Require(s.Encode(*backend, fast, depth) == tight, "backends encode alike", *backend);
  }
  DecodeStatus status;
  if (!tight.empty()) {
    Require(s.Decode(Scalar(), tight, &status) == fast, "it decodes again", Scalar());
  }
  Damage(in, tight);
  return tight;
}

}  // namespace deltawire::kernels::fuzz
