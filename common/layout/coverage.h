// The chunks of a model that an agent owns: trainer nodes without shared memory each publish a
// part. An immutable list of ranges of the chunk table: sorted, disjoint, none empty, neighbors
// joined. Costs 8 bytes per range; contains() is a binary search.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/layout/chunks.h"

namespace deltawire {

/// Chunks first <= i < last.
struct ChunkRange {
  uint32_t first = 0;
  uint32_t last = 0;
  friend bool operator==(const ChunkRange&, const ChunkRange&) = default;
};

/// Bytes first <= i < last.
struct ByteRange {
  uint64_t first = 0;
  uint64_t last = 0;
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

class Coverage {
 public:
  Coverage() = default;  ///< for a model without chunks
  static Coverage All(uint32_t chunks);
  /// Empty `ranges` mean all chunks. Returns kInvalidArgument for a range that is empty, ends
  /// beyond `chunks`, or begins before the previous range ends.
  static StatusOr<Coverage> Create(std::span<const ChunkRange> ranges, uint32_t chunks);

  bool all() const { return size_ == chunks_; }
  bool contains(uint32_t chunk) const;
  /// Returns true when at least one chunk of `range` is owned.
  bool Meets(ChunkRange range) const;
  uint32_t chunks() const { return chunks_; }  ///< number of the model's chunks
  uint32_t size() const { return size_; }      ///< number of owned chunks
  const std::vector<ChunkRange>& ranges() const { return ranges_; }
  /// Returns the number of owned bytes, or their ranges in the data section. REQUIRES: the table
  /// has chunks() chunks.
  uint64_t bytes(const ChunkTable& table) const;
  std::vector<ByteRange> ByteRanges(const ChunkTable& table) const;
  /// Hashes the coverage: XXH3-64 of chunks() and each range's two ends, 4 bytes each.
  uint64_t hash() const;

  friend bool operator==(const Coverage&, const Coverage&) = default;

 private:
  uint32_t chunks_ = 0;
  uint32_t size_ = 0;
  std::vector<ChunkRange> ranges_;
};

/// Returns "[0, 3), [7, 9)": the first few ranges, and the number of the rest.
std::string ToString(const std::vector<ChunkRange>& ranges);

struct NamedCoverage {
  std::string name;  ///< the agent's name
  Coverage coverage;
};
/// Returns OK when every chunk is in exactly one part. kFailedPrecondition names the ranges that no
/// agent owns, and those that two agents own, with the agents' names. REQUIRES: all parts are of
/// one chunk table.
Status CheckPartition(const std::vector<NamedCoverage>& parts);

}  // namespace deltawire
