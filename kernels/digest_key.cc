#include "kernels/digest_key.h"

namespace deltawire::kernels {
namespace {

uint64_t SplitMix64(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

DigestKey::DigestKey(uint64_t seed) : seed_(seed) {
  uint64_t state = seed;
  for (uint64_t& w : words_) w = SplitMix64(state);
  // Multipliers are odd, so that a multiplication loses no bits of a block's sum.
  for (uint64_t& m : multipliers_) m = SplitMix64(state) | 1;
}

}  // namespace deltawire::kernels
