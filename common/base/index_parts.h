// A partition of the indexes [0, n) into contiguous parts, which hands each index out exactly once.
// Next may be called from any thread and costs one atomic. REQUIRES: n < 2^32.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace deltawire {

class IndexParts {
 public:
  /// Makes one part per entry of `shares`, of proportional size. Equal `n` and `shares` give equal
  /// parts. REQUIRES: the sum of `shares` is > 0.
  IndexParts(size_t n, std::span<const size_t> shares);

  /// Returns the next index of `part`, in rising order. When `part` is empty, returns the last
  /// index of the fullest other part. nullopt when every index has been handed out.
  std::optional<size_t> Next(size_t part);

 private:
  /// The remaining range: its begin in the lower half of the word, its end in the upper. One atomic
  /// word holds both, because threads take from both ends. It has a cache line to itself.
  struct alignas(64) Part {
    std::atomic<uint64_t> left{0};
  };
  std::optional<size_t> TakeFirst(Part& part);
  std::optional<size_t> TakeLast(Part& part);

  size_t count_;
  std::unique_ptr<Part[]> parts_;
};

}  // namespace deltawire
