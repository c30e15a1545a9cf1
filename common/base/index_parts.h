// Cuts the indexes [0, n) into contiguous parts and hands each index out exactly once.
// Owner: one call of ParallelFor. Threads: Next from any. Cost: one atomic per index.
// Errors: none. REQUIRES: n < 2^32.
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
  /// Makes one part per entry of `shares`, of a size in proportion to it. Equal `n` and `shares`
  /// always give equal parts. REQUIRES: the sum of `shares` is > 0.
  IndexParts(size_t n, std::span<const size_t> shares);

  /// The next index of `part`, in rising order; once `part` is empty, the last index of the fullest
  /// other part. nullopt when every index was handed out.
  std::optional<size_t> Next(size_t part);

 private:
  /// The range that is left: its begin in the lower half of the word, its end in the upper. One
  /// atomic word holds both, since threads take from both ends. Alone in its cache line.
  struct alignas(64) Part {
    std::atomic<uint64_t> left{0};
  };
  std::optional<size_t> TakeFirst(Part& part);
  std::optional<size_t> TakeLast(Part& part);

  size_t count_;
  std::unique_ptr<Part[]> parts_;
};

}  // namespace deltawire
