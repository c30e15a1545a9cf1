// What the delta fuzz targets share: a reader of the fuzzer's bytes, chunks with data, and deltas
// that the bytes describe. A mutated payload is mostly refused at its first table; a mutated
// description nearly always gives a valid one. Functions are pure, but Require aborts. Every
// payload is an allocation of exactly its size, so that a sanitizer sees one byte too many.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <span>
#include <vector>

#include "kernels/kernels.h"

namespace deltawire::kernels::fuzz {

using Buffer = std::vector<std::byte>;

inline void Require(bool holds, const char* what, const Backend& backend) {
  if (holds) return;
  std::fprintf(stderr, "violated on backend %s: %s\n", backend.name, what);
  std::abort();
}

/// The oracle and one other backend, which the input's bytes choose. To run all backends on every
/// input would cost more time than it finds bugs.
inline std::array<const Backend*, 2> TwoBackends(const uint8_t* data, size_t size) {
  const std::span<const Backend* const> all = All();
  if (all.size() == 1) return {all[0], all[0]};
  size_t sum = size;
  for (size_t i = 0; i < size; ++i) sum = sum * 31 + data[i];
  return {all[0], all[1 + sum % (all.size() - 1)]};
}

/// The fuzzer's bytes; zeros beyond their end.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return at_ >= size_; }
  uint8_t Byte() { return empty() ? uint8_t{0} : data_[at_++]; }
  uint64_t Number(unsigned bytes) {
    uint64_t v = 0;
    for (unsigned i = 0; i < bytes; ++i) v |= uint64_t{Byte()} << 8 * i;
    return v;
  }
  /// The next `most` bytes, or what is left.
  Buffer Take(size_t most) {
    const size_t n = std::min(most, size_ - std::min(at_, size_));
    const auto* p = reinterpret_cast<const std::byte*>(data_ + at_);
    at_ += n;
    return Buffer(p, p + n);
  }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
};

/// A chunk's shape.
struct Shape {
  unsigned width = 1;
  size_t elements = 1;
  size_t bytes() const { return width * elements; }

  /// A shape within one block, so that a run of the target is short: bits 0-1 of `byte` choose the
  /// width, bits 2-4 the number of elements.
  static Shape Small(uint8_t byte) {
    constexpr std::array<size_t, 8> kElements = {1, 3, 64, 257, 700, 300, 17, 128};
    return {1u << (byte & 3), kElements[byte >> 2 & 7]};
  }
  /// A shape of up to three blocks: bit 0 chooses the width, bits 2-4 the number of elements.
  static Shape Large(uint8_t byte) {
    constexpr size_t k = kBlockElements;
    constexpr std::array<size_t, 8> kElements = {k - 1,     k,     k + 1,     k + 8,
                                                 2 * k - 1, 2 * k, 2 * k + 3, 2 * k + 77};
    return {1 + (byte & 1u), kElements[byte >> 2 & 7]};
  }
};

/// Memory of exactly the size that fold and negate may use.
inline MutableBytes FoldScratch(unsigned width) {
  static std::map<unsigned, Buffer> made;
  Buffer& scratch = made[width];
  if (scratch.empty()) scratch.resize(FoldScratchBytes(width));
  return scratch;
}

/// Data that differs from element to element, so that a misplaced difference shows. It has
/// exponents of all sizes for every class function.
inline const Buffer& Pattern(size_t bytes) {
  static std::map<size_t, Buffer> made;
  Buffer& out = made[bytes];
  if (!out.empty()) return out;
  out.resize(bytes);
  uint64_t state = 0x9e3779b97f4a7c15u;
  for (std::byte& b : out) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    b = static_cast<std::byte>(state >> 56);
  }
  return out;
}

inline const DigestKey& Key() {
  static const DigestKey key(1);
  return key;
}

/// The digest of a pattern, computed once for each backend and size.
inline uint64_t PatternDigest(const Backend& backend, size_t bytes) {
  static std::map<std::pair<const Backend*, size_t>, uint64_t> made;
  const auto [it, fresh] = made.try_emplace({&backend, bytes}, 0);
  if (fresh) it->second = backend.digest(Key(), Pattern(bytes));
  return it->second;
}

inline Buffer Diff(const Backend& backend, Bytes a, Bytes b, unsigned width) {
  Buffer out(MaxEncodedBytes(a.size(), width));
  const EncodeResult r = backend.diff_encode(Key(), a, b, width, 0, out);
  Require(r.bytes <= out.size(), "a payload stays within MaxEncodedBytes", backend);
  return Buffer(out.begin(), out.begin() + static_cast<ptrdiff_t>(r.bytes));
}

/// Adds the changes that the input describes to `data`: the input says how many follow, then for
/// each a gap and a difference, most of one byte each.
inline void Change(Input& in, unsigned width, Buffer& data) {
  const size_t elements = data.size() / width;
  size_t at = 0;
  for (unsigned left = in.Byte(); left > 0 && !in.empty(); --left) {
    const uint8_t gap = in.Byte(), kind = in.Byte();
    at += gap < 200 ? gap : size_t{gap - 199u} * 1200;
    uint64_t d = (kind & 1) != 0 ? 1 : ~uint64_t{0};
    if (kind >= 128) d *= uint64_t{kind} - 126;
    if (kind >= 192) d = in.Number(1 + (kind & 7));
    size_t run = 1;
    if (kind >= 240) run = size_t{1} << (kind & 15);
    for (; run > 0 && at < elements; --run, ++at) {
      uint64_t v = 0;
      std::memcpy(&v, data.data() + at * width, width);
      v += d;
      std::memcpy(data.data() + at * width, &v, width);
    }
    if (at >= elements) return;
  }
}

/// A valid fast payload from the input; empty where its changes cancel.
inline Buffer DescribedDelta(Input& in, const Shape& shape) {
  const Buffer zeros(shape.bytes());
  Buffer data = zeros;
  Change(in, shape.width, data);
  return Diff(Scalar(), zeros, data, shape.width);
}

/// Flips one bit of the payload for every two bytes that are left of the input.
inline void Damage(Input& in, Buffer& payload) {
  while (!in.empty() && !payload.empty()) {
    const size_t at = in.Number(2);
    payload[at / 8 % payload.size()] ^= static_cast<std::byte>(1u << at % 8);
  }
}

}  // namespace deltawire::kernels::fuzz
