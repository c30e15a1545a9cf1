// Seeded data for the kernel tests: buffers at chosen misalignments, and changes of chosen kinds.
// Everything follows from a seed; a Buffer owns an exact allocation, so asan sees the byte after
// it. Threads: one for each object.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/kernels.h"

namespace deltawire::kernels::test {

inline constexpr unsigned kWidths[] = {1, 2, 4, 8};

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  uint64_t Below(uint64_t n) { return Next() % n; }
  bool Chance(double p) { return static_cast<double>(Next() >> 11) * 0x1p-53 < p; }

 private:
  uint64_t state_;
};

/// `size` bytes that start `skew` bytes into an allocation of exactly skew + size bytes.
class Buffer {
 public:
  explicit Buffer(size_t size, size_t skew = 0)
      : memory_(std::make_unique<std::byte[]>(skew + size)), size_(size), skew_(skew) {}
  Buffer(Bytes bytes, size_t skew) : Buffer(bytes.size(), skew) {
    if (bytes.size() > PTRDIFF_MAX) std::abort();  // cannot be, but GCC 12 warns of it
    if (!bytes.empty()) std::memcpy(data(), bytes.data(), bytes.size());
  }
  std::byte* data() { return memory_.get() + skew_; }
  const std::byte* data() const { return memory_.get() + skew_; }
  size_t size() const { return size_; }
  // NOLINTNEXTLINE(google-explicit-constructor): a buffer is passed wherever a kernel takes bytes
  operator Bytes() const { return {data(), size_}; }
  // NOLINTNEXTLINE(google-explicit-constructor)
  operator MutableBytes() { return {data(), size_}; }
  void Fill(Random& random) {
    for (size_t i = 0; i < size_; ++i) data()[i] = static_cast<std::byte>(random.Next());
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
  size_t size_, skew_;
};

inline bool Equal(Bytes a, Bytes b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

inline uint64_t LoadAt(Bytes data, size_t i, unsigned width) {
  uint64_t v = 0;
  std::memcpy(&v, data.data() + i * width, width);
  return v;
}
inline void StoreAt(MutableBytes data, size_t i, unsigned width, uint64_t v) {
  std::memcpy(data.data() + i * width, &v, width);
}

enum class Change { kSmall, kAny, kBoundary, kSpecial };
inline constexpr Change kChanges[] = {Change::kSmall, Change::kAny, Change::kBoundary,
                                      Change::kSpecial};

/// The value that an element of value `old` changes to.
inline uint64_t Changed(uint64_t old, Change how, unsigned width, Random& random) {
  // Differences at the ends of a signed and of an unsigned byte, and at the end of 64 bits.
  static constexpr int64_t kEdges[] = {126,  127,  128, 129, -126, -127,
                                       -128, -129, 254, 255, 256,  INT64_MIN};
  // bf16, fp16, fp32 and fp64 patterns: +-0, infinities, NaNs, denormals.
  static constexpr uint64_t kPatterns[] = {
      0,          0x8000,     0x80000000, 0x8000000000000000, 0x7f80,      0xff80,
      0x7fc0,     0x7c00,     0x7f800000, 0x7ff0000000000000, 0xffc00001,  0x0001,
      0x80000001, 0x007fffff, 0xffff,     0xffffffff,         ~uint64_t{0}};
  switch (how) {
    case Change::kSmall:
      return old + (random.Below(2) != 0 ? 1 : ~uint64_t{0});
    case Change::kAny:
      return random.Next();
    case Change::kBoundary:
      if (random.Below(4) == 0) return old ^ (uint64_t{1} << (8 * width - 1));
      return old + static_cast<uint64_t>(kEdges[random.Below(std::size(kEdges))]);
    case Change::kSpecial:
      return kPatterns[random.Below(std::size(kPatterns))];
  }
  return old;
}

/// Changes about `density` of the elements of `data`.
inline void Mutate(MutableBytes data, unsigned width, double density, Change how, Random& random) {
  for (size_t i = 0; i < data.size() / width; ++i) {
    if (!random.Chance(density)) continue;
    StoreAt(data, i, width, Changed(LoadAt(data, i, width), how, width, random));
  }
}

inline uint64_t CountChanged(Bytes a, Bytes b, unsigned width) {
  uint64_t n = 0;
  for (size_t i = 0; i < a.size() / width; ++i) n += LoadAt(a, i, width) != LoadAt(b, i, width);
  return n;
}

/// The payload of b - a by `backend`, in an exact allocation.
inline Buffer Encode(const Backend& backend, const DigestKey& key, Bytes a, Bytes b,
                     unsigned width) {
  Buffer out(MaxEncodedBytes(a.size(), width));
  const EncodeResult r =
      backend.diff_encode(key, a, b, width, backend.digest(key, a), MutableBytes(out));
  return Buffer(Bytes(out).first(r.bytes), 0);
}

}  // namespace deltawire::kernels::test
