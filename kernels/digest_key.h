// The key of the incremental chunk digest, expanded from a 64-bit seed: one 64-bit word per 32-bit
// data word of a block of 4 KiB, and one odd multiplier per such block of a chunk. Immutable. Takes
// 24 KiB, and a few us to make.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/format.h"

namespace deltawire::kernels {

class DigestKey {
 public:
  // Small, so that the whole key stays in the first-level cache beside a sparse delta's data.
  static constexpr size_t kBlockBytes = kDigestBlockBytes;
  static constexpr size_t kWordsPerBlock = kDigestWords;
  static constexpr size_t kMaxBlocks = kDigestBlocks;  // of the largest chunk

  explicit DigestKey(uint64_t seed);

  uint64_t seed() const { return seed_; }
  const uint64_t* words() const { return words_.data(); }
  const uint64_t* multipliers() const { return multipliers_.data(); }
  uint64_t multiplier(size_t block) const { return multipliers_[block]; }

 private:
  uint64_t seed_;
  std::array<uint64_t, kWordsPerBlock> words_;
  std::array<uint64_t, kMaxBlocks> multipliers_;
};

}  // namespace deltawire::kernels
