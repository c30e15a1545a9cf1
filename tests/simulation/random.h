// The only source of chance in a history: a seeded generator (SplitMix64), the same on every
// machine. Owner: the holder; a plain value. Threads: one. Cost: a few ns a draw. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace deltawire::simulation {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  /// In [0, n). REQUIRES: n > 0.
  uint64_t Below(uint64_t n) { return Next() % n; }
  /// In [first, last].
  uint64_t Between(uint64_t first, uint64_t last) { return first + Below(last - first + 1); }
  double Share() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  bool Chance(double p) { return Share() < p; }
  /// A separate generator, so that one part's draws do not shift the draws of others.
  Random Fork() { return Random(Next()); }

 private:
  uint64_t state_;
};

}  // namespace deltawire::simulation
