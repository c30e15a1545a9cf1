#include "common/base/index_parts.h"

#include <numeric>

namespace deltawire {
namespace {

constexpr uint64_t kOneOfEnd = uint64_t{1} << 32;

uint64_t Begin(uint64_t left) { return static_cast<uint32_t>(left); }
uint64_t End(uint64_t left) { return left >> 32; }
uint64_t Size(uint64_t left) { return End(left) - Begin(left); }

}  // namespace

IndexParts::IndexParts(size_t n, std::span<const size_t> shares)
    : count_(shares.size()), parts_(std::make_unique<Part[]>(count_)) {
  const size_t whole = std::accumulate(shares.begin(), shares.end(), size_t{0});
  size_t before = 0;
  for (size_t p = 0; p < count_; ++p) {
    const uint64_t begin = n * before / whole;
    before += shares[p];
    const uint64_t end = n * before / whole;
    parts_[p].left.store(end << 32 | begin, std::memory_order_relaxed);
  }
}

std::optional<size_t> IndexParts::TakeFirst(Part& part) {
  uint64_t left = part.left.load(std::memory_order_relaxed);
  while (Size(left) > 0) {
    if (part.left.compare_exchange_weak(left, left + 1, std::memory_order_relaxed)) {
      return Begin(left);
    }
  }
  return std::nullopt;
}

std::optional<size_t> IndexParts::TakeLast(Part& part) {
  uint64_t left = part.left.load(std::memory_order_relaxed);
  while (Size(left) > 0) {
    if (part.left.compare_exchange_weak(left, left - kOneOfEnd, std::memory_order_relaxed)) {
      return End(left) - 1;
    }
  }
  return std::nullopt;
}

std::optional<size_t> IndexParts::Next(size_t part) {
  if (const auto own = TakeFirst(parts_[part])) return own;
  // Parts only shrink, so a pass that finds all of them empty is final.
  while (true) {
    Part* fullest = nullptr;
    uint64_t most = 0;
    for (size_t p = 0; p < count_; ++p) {
      const uint64_t size = Size(parts_[p].left.load(std::memory_order_relaxed));
      if (size <= most) continue;
      most = size;
      fullest = &parts_[p];
    }
    if (fullest == nullptr) return std::nullopt;
    if (const auto stolen = TakeLast(*fullest)) return stolen;
  }
}

}  // namespace deltawire
