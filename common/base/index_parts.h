// The indexes [0, n) in contiguous parts, handed out one by one, each exactly once.
// Owner: one call of ParallelFor. Threads: Next from any. Cost: one atomic per index.
// Errors: none; n < 2^32.
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
  /// One part for each of `shares` (at least one, with a sum > 0), in proportion to them: equal n
  /// and shares make equal parts.
  IndexParts(size_t n, std::span<const size_t> shares);

  /// The next index of `part`, in rising order; once it is empty, the last index of the fullest
  /// other part. nullopt when all were handed out.
  std::optional<size_t> Next(size_t part);

 private:
  /// Bounds of what is left, in one word so that both ends are taken from at once: begin in the
  /// lower half, end in the upper. Alone in its cache line.
  struct alignas(64) Part {
    std::atomic<uint64_t> left{0};
  };
  std::optional<size_t> TakeFirst(Part& part);
  std::optional<size_t> TakeLast(Part& part);

  size_t count_;
  std::unique_ptr<Part[]> parts_;
};

}  // namespace deltawire
