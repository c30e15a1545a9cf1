// Key material of the incremental chunk digest: one 64-bit word per 32-bit data word of a block
// of 128 KiB, and one odd multiplier per such block of a chunk. Expanded from a 64-bit seed.
// Immutable after construction, so shared by threads freely. Cost: 256 KiB, ~0.1 ms to make.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace deltawire::kernels {

class DigestKey {
 public:
  static constexpr size_t kBlockBytes = 128 * 1024;
  static constexpr size_t kWordsPerBlock = kBlockBytes / 4;
  static constexpr size_t kMaxBlocks = 64;  // 8 MiB, the largest chunk

  explicit DigestKey(uint64_t seed);

  uint64_t seed() const { return seed_; }
  const uint64_t* words() const { return words_.get(); }
  uint64_t multiplier(size_t block) const { return multipliers_[block]; }

 private:
  uint64_t seed_;
  std::unique_ptr<uint64_t[]> words_;
  std::array<uint64_t, kMaxBlocks> multipliers_;
};

}  // namespace deltawire::kernels
