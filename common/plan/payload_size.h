// A prediction of a chunk's delta size: from the format's own code lengths (docs/delta_format.md,
// "fast"), and from the measured size of a training step's deltas relative to them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace deltawire::plan {

/// The distribution and magnitude of the changes: the traces of docs/benchmarks.md, "delta".
enum class ChangeKind : uint8_t { kFp32, kGrid, kBf16, kRandom };
std::string_view ToString(ChangeKind kind);
std::optional<ChangeKind> ParseChangeKind(std::string_view name);

struct ChangeShape {
  double difference_bits = 0;  ///< sign and magnitude of one change, in `fast`
  double tight_ratio = 0;      ///< bytes of `tight` over `fast`'s
  double history_ratio = 0;    ///< the same with past deltas
};
ChangeShape ShapeOf(ChangeKind kind);

/// Returns the expected bytes of a chunk's fast payload; `density` is the share of its elements
/// that change. 0: no change.
double FastBytes(uint64_t chunk_bytes, unsigned width, double density, double difference_bits);

/// Returns the probability that a chunk changes at all.
double ChunkChanges(uint64_t elements, double density);

}  // namespace deltawire::plan
