// Fuzzes the delta payload decoders of every backend: nothing is read or written out of bounds, the
// backends agree bit for bit, and what validates obeys the group's laws (a delta plus its negation
// is nothing, a delta folded with itself is the delta applied twice).
// Input: one byte (bits 0-1 width, bits 2-4 size, bit 5 elements), then the payload.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

#include "kernels/kernels.h"

namespace {

using namespace deltawire::kernels;  // NOLINT(google-build-using-namespace): one small program

using Buffer = std::vector<std::byte>;

// Around the block's edges; the last ones have three blocks.
constexpr size_t kElements[] = {
    1, 7, 64, 1000, kBlockElements - 1, kBlockElements, kBlockElements + 1, 2 * kBlockElements + 3};

void Check(bool holds, const char* what, const char* backend) {
  if (holds) return;
  std::fprintf(stderr, "violated on backend %s: %s\n", backend, what);
  std::abort();
}

// Data that differs from element to element, so that a misplaced difference shows.
Buffer Pattern(size_t bytes) {
  Buffer out(bytes);
  uint64_t state = 0x9e3779b97f4a7c15u;
  for (std::byte& b : out) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    b = static_cast<std::byte>(state >> 56);
  }
  return out;
}

struct Chunk {
  const Backend* backend;
  const DigestKey* key;
  unsigned width;
  Buffer data;
  uint64_t digest;

  // Applies a payload that must be sound, and checks the digest it brings forward.
  void Apply(Bytes payload, const char* what) {
    uint64_t after = 0;
    const DecodeStatus status = backend->decode_apply(*key, payload, data, width, digest, &after);
    Check(status == DecodeStatus::kOk, what, backend->name);
    Check(after == backend->digest(*key, data), "incremental digest equals a full one",
          backend->name);
    digest = after;
  }
};

using Operation = DecodeStatus (*)(const Backend&, Bytes, size_t, unsigned, MutableBytes,
                                   MutableBytes, size_t*);

Buffer Run(const Backend& backend, Bytes payload, size_t raw_bytes, unsigned width, Operation op) {
  Buffer scratch(FoldScratchBytes(width));
  Buffer out(MaxEncodedBytes(raw_bytes, width));
  size_t bytes = 0;
  const DecodeStatus status = op(backend, payload, raw_bytes, width, scratch, out, &bytes);
  Check(status == DecodeStatus::kOk, "a validated payload folds and negates", backend.name);
  Check(bytes <= out.size(), "output stays within MaxEncodedBytes", backend.name);
  out.resize(bytes);
  if (bytes != 0) {
    Check(backend.validate(out, raw_bytes, width, nullptr) == DecodeStatus::kOk,
          "output of fold or negate validates", backend.name);
  }
  return out;
}

DecodeStatus Negate(const Backend& b, Bytes payload, size_t raw, unsigned width,
                    MutableBytes scratch, MutableBytes out, size_t* bytes) {
  return b.negate(payload, raw, width, scratch, out, bytes);
}

DecodeStatus FoldTwice(const Backend& b, Bytes payload, size_t raw, unsigned width,
                       MutableBytes scratch, MutableBytes out, size_t* bytes) {
  const std::array<Bytes, 2> both = {payload, payload};
  return b.fold(both, raw, width, scratch, out, bytes);
}

void CheckLaws(Chunk chunk, Bytes payload) {
  const Backend& backend = *chunk.backend;
  const size_t raw = chunk.data.size();
  const Buffer base = chunk.data;
  const uint64_t base_digest = chunk.digest;
  const Buffer negated = Run(backend, payload, raw, chunk.width, Negate);
  const Buffer twice = Run(backend, payload, raw, chunk.width, FoldTwice);

  chunk.Apply(payload, "a validated payload applies");
  const Buffer once = chunk.data;
  Buffer encoded(MaxEncodedBytes(raw, chunk.width));
  const EncodeResult again =
      backend.diff_encode(*chunk.key, base, once, chunk.width, base_digest, encoded);
  encoded.resize(again.bytes);
  Check(std::ranges::equal(encoded, payload), "one delta has one encoding", backend.name);
  Check(again.digest_after == chunk.digest, "diff and apply agree on the digest", backend.name);
  Check(!negated.empty(), "a validated payload changes something", backend.name);
  chunk.Apply(negated, "a negation applies");
  Check(chunk.data == base, "a delta and its negation cancel", backend.name);
  const std::array<Bytes, 2> both = {payload, negated};
  Buffer scratch(FoldScratchBytes(chunk.width));
  Buffer out(MaxEncodedBytes(raw, chunk.width));
  size_t bytes = 1;
  const DecodeStatus status = backend.fold(both, raw, chunk.width, scratch, out, &bytes);
  Check(status == DecodeStatus::kOk && bytes == 0, "delta + negation folds to nothing",
        backend.name);
  chunk.Apply(payload, "a validated payload applies again");
  chunk.Apply(payload, "a validated payload applies twice");
  const Buffer applied_twice = chunk.data;
  chunk.data = base;
  chunk.digest = backend.digest(*chunk.key, base);
  if (!twice.empty()) chunk.Apply(twice, "a fold applies");
  Check(chunk.data == applied_twice, "fold(d, d) equals applying d twice", backend.name);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size == 0) return 0;
  const unsigned width = 1u << (bytes[0] & 3);
  const size_t elements = kElements[(bytes[0] >> 2) & 7];
  const size_t raw = elements * width;
  const Bytes payload = std::as_bytes(std::span(bytes + 1, size - 1));
  static const DigestKey key(1);

  static const Buffer pattern = Pattern(std::ranges::max(kElements) * 8);
  const Buffer base(pattern.begin(), pattern.begin() + static_cast<ptrdiff_t>(raw));
  Buffer expected;
  uint64_t expected_changed = 0;
  const DecodeStatus expected_status = Scalar().validate(payload, raw, width, &expected_changed);
  for (const Backend* backend : All()) {
    uint64_t changed = 0;
    const DecodeStatus status = backend->validate(payload, raw, width, &changed);
    Check(status == expected_status, "backends agree on what is valid", backend->name);

    // Unvalidated bytes may be refused in part, but never reach out of bounds.
    Chunk chunk{backend, &key, width, base, backend->digest(key, base)};
    uint64_t after = 0;
    const DecodeStatus applied =
        backend->decode_apply(key, payload, chunk.data, width, chunk.digest, &after);
    if (status != DecodeStatus::kOk) continue;
    Check(applied == DecodeStatus::kOk, "what validates applies", backend->name);
    Check(changed == expected_changed, "backends agree on the change count", backend->name);
    if (backend == &Scalar()) expected = chunk.data;
    Check(chunk.data == expected, "backends agree on the result", backend->name);
    CheckLaws(Chunk{backend, &key, width, base, backend->digest(key, base)}, payload);
  }
  return 0;
}
