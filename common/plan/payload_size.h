// How large a chunk's delta becomes, before there is one: by the format's own code lengths
// (docs/delta_format.md, "fast"), and by what a training step's deltas measured relative to them.
// Pure functions. Cost: constant. Errors: none.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace deltawire::plan {

/// How the changed elements lie, and how far they move: the traces of docs/benchmarks.md, "delta".
enum class ChangeKind : uint8_t { kFp32, kGrid, kBf16, kRandom };
std::string_view ToString(ChangeKind kind);
std::optional<ChangeKind> ParseChangeKind(std::string_view name);

/// What a kind means for sizes.
struct ChangeShape {
  double difference_bits = 0;  ///< sign and size of one change, in `fast`
  double tight_ratio = 0;      ///< bytes of `tight` over `fast`'s
  double history_ratio = 0;    ///< the same with past deltas
};
ChangeShape ShapeOf(ChangeKind kind);

/// Expected bytes of a chunk's fast payload; `density` is the share of its elements that change.
/// 0: nothing changes.
double FastBytes(uint64_t chunk_bytes, unsigned width, double density, double difference_bits);

/// The probability that a chunk changes at all.
double ChunkChanges(uint64_t elements, double density);

}  // namespace deltawire::plan
