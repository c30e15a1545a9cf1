#include "common/plan/payload_size.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/format.h"

namespace deltawire::plan {
namespace {

constexpr std::pair<ChangeKind, std::string_view> kKinds[] = {{ChangeKind::kFp32, "fp32"},
                                                              {ChangeKind::kGrid, "grid"},
                                                              {ChangeKind::kBf16, "bf16"},
                                                              {ChangeKind::kRandom, "random"}};
// The size of a row in the blocks' table, whose columns hold numbers that lie within some standard
// deviations.
double RowBytes(double changes_in_block) {
  constexpr double kDeviations = 5;
  return kernels::kFastColumns * std::log2(1 + kDeviations * std::sqrt(changes_in_block)) / 8;
}

}  // namespace

std::string_view ToString(ChangeKind kind) {
  for (const auto& [known, name] : kKinds) {
    if (known == kind) return name;
  }
  return "?";
}

std::optional<ChangeKind> ParseChangeKind(std::string_view name) {
  for (const auto& [kind, known] : kKinds) {
    if (known == name) return kind;
  }
  return std::nullopt;
}

// From docs/benchmarks.md, "delta": bits of `fast` without the gaps, and the ratios.
ChangeShape ShapeOf(ChangeKind kind) {
  switch (kind) {
    case ChangeKind::kFp32:
      return {1.83, 0.70, 0.664};
    case ChangeKind::kGrid:
      return {1.96, 0.584, 0.551};
    case ChangeKind::kBf16:
      return {3.15, 0.351, 0.263};
    case ChangeKind::kRandom:
      return {2.3, 0.98, 0.98};
  }
  return {};
}

double ChunkChanges(uint64_t elements, double density) {
  if (density >= 1) return 1;
  return -std::expm1(static_cast<double>(elements) * std::log1p(-density));
}

double FastBytes(uint64_t chunk_bytes, unsigned width, double density, double difference_bits) {
  if (density <= 0 || chunk_bytes == 0) return 0;
  const uint64_t elements = chunk_bytes / width;
  const uint64_t block = std::min<uint64_t>(elements, kernels::kBlockElements);
  const double blocks = std::ceil(static_cast<double>(elements) / static_cast<double>(block));
  const auto in_block = std::clamp<uint64_t>(
      static_cast<uint64_t>(std::llround(density * static_cast<double>(block))), 1, block);
  const unsigned k = kernels::RiceParameter(in_block, block);
  // Gaps are geometric: each further 2^k unchanged elements cost a bit.
  const double again = density >= 1 ? 0 : std::pow(1 - density, std::exp2(k));
  const double bits = k + 1 / (1 - again) + difference_bits;
  const double changes = density * static_cast<double>(elements);
  // A block that would exceed its raw differences is stored raw.
  const double coded = std::min(changes * bits / 8, static_cast<double>(chunk_bytes));
  return kernels::kTableOffset + blocks * RowBytes(density * static_cast<double>(block)) + coded;
}

}  // namespace deltawire::plan
