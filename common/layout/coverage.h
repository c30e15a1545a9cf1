// Which chunks of a model an agent owns: nodes that share no memory each publish a part.
// Immutable value: ranges of the chunk table, sorted, disjoint, none empty, neighbours joined.
// Cost: 8 bytes per range; contains() is a binary search. Errors name the range.
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
  Coverage() = default;  ///< of a model without chunks
  static Coverage All(uint32_t chunks);
  /// No ranges mean all chunks. kInvalidArgument: a range that is empty or ends beyond `chunks`, or
  /// does not begin at or after the end of the one before.
  static StatusOr<Coverage> Create(std::span<const ChunkRange> ranges, uint32_t chunks);

  bool all() const { return size_ == chunks_; }
  bool contains(uint32_t chunk) const;
  /// Some chunk of `range` is owned.
  bool Meets(ChunkRange range) const;
  uint32_t chunks() const { return chunks_; }  ///< of the model
  uint32_t size() const { return size_; }      ///< of them owned
  const std::vector<ChunkRange>& ranges() const { return ranges_; }
  /// Owned bytes, and where they are in the data section. REQUIRES: the table has chunks() chunks.
  uint64_t bytes(const ChunkTable& table) const;
  std::vector<ByteRange> ByteRanges(const ChunkTable& table) const;
  /// Names the coverage: XXH3-64 of chunks() and then each range's two ends, 4 bytes each.
  uint64_t hash() const;

  friend bool operator==(const Coverage&, const Coverage&) = default;

 private:
  uint32_t chunks_ = 0;
  uint32_t size_ = 0;
  std::vector<ChunkRange> ranges_;
};

/// "[0, 3), [7, 9)"; at most some ranges, then how many more there are.
std::string ToString(const std::vector<ChunkRange>& ranges);

/// One agent's part of a model.
struct NamedCoverage {
  std::string name;  ///< of the agent
  Coverage coverage;
};
/// OK when every chunk is in exactly one part. kFailedPrecondition names the ranges that are in
/// none, and those that are in two with both agents. REQUIRES: all are of one chunk table.
Status CheckPartition(const std::vector<NamedCoverage>& parts);

}  // namespace deltawire
